"""Kernels of the layers: for each layer one function, and several ways to compute it."""
