"""The largest eigenvalue of a Hermitian matrix, with the derivatives that it has."""

from __future__ import annotations

import torch
from torch import Tensor

from legato._support.tree import square


def largest_eigenvalue(gram: Tensor) -> Tensor:
    r"""The largest eigenvalue of a Hermitian matrix (…, n, n), attached up to second derivatives.

    .. math:: λ(G + E) = λ + v^*Ev + \sum_j \frac{|v_j^*Ev|²}{λ − λ_j} + O(‖E‖³)

    Autograd's own second derivative divides by the gaps between all pairs of eigenvalues, which is
    NaN for a matrix with any two alike. Where the largest is a multiple one, the mean over its
    eigenvectors, which is right for all changes that keep it multiple.
    Reference: Kato (1995), *Perturbation Theory for Linear Operators*, II.2.
    """
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(gram.detach())
        top = values[..., -1:]
        rounding = gram.shape[-1] * torch.finfo(values.dtype).eps * top.abs()
        tied = top - values <= 8 * rounding
        mean = tied / tied.sum(-1, keepdim=True)
        inverse = torch.where(tied, 0.0, 1 / torch.where(tied, 1.0, top - values))
    change = vectors.mH @ (gram - gram.detach()) @ vectors  # zeros, with a derivative
    bent = (square(change) * inverse.unsqueeze(-2)).sum(-1)
    return top[..., 0] + (mean * (change.diagonal(dim1=-2, dim2=-1).real + bent)).sum(-1)


def root(squares: Tensor) -> Tensor:
    """√ of numbers ≥ 0, with the derivative 0 at 0: that of a norm is then the mean of all."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0 * squares.detach())
