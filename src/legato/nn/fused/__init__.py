"""What fused layers share: an operator for torch, the choice of a kernel, rows, replay."""
