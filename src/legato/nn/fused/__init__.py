"""What fused layers share: one operator for torch, the choice of a kernel, bands of rows, replay."""
