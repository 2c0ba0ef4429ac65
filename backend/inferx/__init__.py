"""InferX: low-latency LLM inference as a Python backend of NVIDIA Triton Inference Server."""

__version__ = "0.1.0"
