"""The denoising study: total variation, weights from a network, and learned filters."""
