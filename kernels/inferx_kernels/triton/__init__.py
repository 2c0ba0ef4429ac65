"""The kernels in OpenAI Triton, for an NVIDIA GPU (tuned on Hopper)."""
