"""The spectral radius of a map that is known by its products only."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from legato.gradients.linear.base import Product


def spectral_radius(product: Product, start: Tensor, iterations: int = 100) -> float:
    r"""The modulus of the dominant eigenvalue of M that ``start`` excites, by power iteration.

    .. math:: ρ = \lim_{n → ∞} \big(‖M^{2n} v‖ / ‖M^n v‖\big)^{1/n}

    Eigenvalues that ``start`` does not excite (say, of dual variables that touch nothing) stay out
    of sight. Reference: Golub and Van Loan, *Matrix Computations*, Section 7.3.

    >>> M = torch.tensor([[0.5, 1.0], [0.0, 0.25]])
    >>> round(legato.gradients.spectral_radius(lambda w: M @ w, torch.ones(2)), 3)
    0.5
    """
    v, sizes = start, [float(torch.linalg.vector_norm(start))]
    # Below √eps of the start there may be nothing but rounding, which M amplifies at will.
    rounding = torch.finfo(start.dtype).eps ** 0.5 * sizes[0]
    for _ in range(iterations):
        v = product(v)
        sizes.append(float(torch.linalg.vector_norm(v)))
        if not rounding < sizes[-1] < math.inf:
            break
    return decay_rate(sizes)


def decay_rate(sizes: list[float]) -> float:
    """The rate at which a sequence of norms decays, as the mean over its second half.

    The first half forgets the start; a mean also settles the swinging of complex pairs.
    """
    usable = [s for s in sizes if s > 0 and math.isfinite(s)]
    if len(usable) < len(sizes) and sizes[-1] != 0:
        return math.inf
    if len(usable) < 2:
        return 0.0
    start = len(usable) // 2 if len(usable) > 3 else len(usable) - 2
    return float((usable[-1] / usable[start]) ** (1 / (len(usable) - 1 - start)))


def random_vector(like: Tensor, seed: int = 0) -> Tensor:
    """A reproducible start for power iterations and probes: independent v_i ∼ N(0, 1).

    >>> legato.gradients.random_vector(torch.zeros(3)).shape
    torch.Size([3])
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
