"""The paper's one-dimensional example: six ways to differentiate a nonsmooth solution map."""
