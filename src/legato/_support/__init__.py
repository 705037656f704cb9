"""What every room uses: trees of tensors, checks, autograd, precision, files."""
