"""The kernels of total variation for CUDA, in Triton."""
