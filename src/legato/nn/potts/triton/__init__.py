"""The Potts kernels for CUDA, in Triton."""
