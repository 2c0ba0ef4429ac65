"""The fused Llama-like models on an NVIDIA GPU: our kernels, in CUDA graphs, without host syncs."""
