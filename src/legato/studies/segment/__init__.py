"""The segmentation study: labelled images, networks, and the paper's global layer behind them."""
