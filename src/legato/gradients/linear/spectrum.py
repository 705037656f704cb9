"""The spectral radius of a map that is known by its products only."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from legato._support.checks import inside_functional_transform, is_watched
from legato.gradients.linear.base import Product, engine_behind
from legato.gradients.linear.krylov import Krylov

RITZ_PRODUCTS = 10
"""Products from which a radius is estimated where the start holds most of what decays slowest."""


def spectral_radius(product: Product, start: Tensor, iterations: int = 100) -> float:
    r"""The modulus of the dominant eigenvalue of M that ``start`` excites, by power iteration.

    .. math:: ρ = \lim_{n → ∞} \big(‖M^{2n} v‖ / ‖M^n v‖\big)^{1/n}

    Eigenvalues that ``start`` does not excite (say, of dual variables that touch nothing) stay out
    of sight. The largest, where ``start`` has rows.
    Reference: Golub and Van Loan, *Matrix Computations*, Section 7.3.

    >>> M = torch.tensor([[0.5, 1.0], [0.0, 0.25]])
    >>> round(legato.gradients.spectral_radius(lambda w: M @ w, torch.ones(2)), 3)
    0.5
    """
    v, sizes = start, [norms(start)]
    # Below √eps of the start there may be nothing but rounding, which M amplifies at will.
    rounding = torch.finfo(start.dtype).eps ** 0.5
    for _ in range(iterations):
        v = product(v)
        sizes.append(norms(v))
        parts = zip(sizes[0], sizes[-1], strict=True)
        if not any(rounding * first < last < math.inf for first, last in parts):
            break
    return largest_decay_rate(sizes, rounding)


def norms(v: Tensor) -> list[float]:
    """‖v‖ of a vector, or of each row, as numbers."""
    return torch.linalg.vector_norm(v, dim=-1).reshape(-1).tolist()


def largest_decay_rate(sizes: list[list[float]], rounding: float = 0.0) -> float:
    """The largest rate at which one of several sequences of norms decays.

    Each ends where it has fallen below ``rounding`` of its start.
    """
    rates = [0.0]
    for sequence in zip(*sizes, strict=True):
        end = next(
            (k for k, s in enumerate(sequence) if not s > rounding * sequence[0]), len(sequence)
        )
        rates.append(decay_rate(list(sequence[: end + 1])))
    return max(rates)


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


def ritz_radius(product: Product, start: Tensor, products: int = RITZ_PRODUCTS) -> float:
    r"""The largest modulus of an eigenvalue of M on the Krylov space of ``start``.

    .. math:: \max |λ(V^⊤ M V)|, \qquad V \text{ an orthonormal basis of } \{v, Mv, …, M^{k−1}v\}

    Extreme eigenvalues show in it long before power iteration finds them. What ``start`` does not
    excite stays out of sight. The largest of all rows; a GPU is waited for once.
    Reference: Saad (2011), *Numerical Methods for Large Eigenvalue Problems*, Section 6.2.
    """
    n = start.shape[-1]
    rows = start.reshape(-1, n)

    def by_rows(v: Tensor) -> Tensor:
        return product(v.reshape(start.shape)).reshape(rows.shape)

    size = min(products, n)
    rounding = torch.finfo(start.dtype).eps ** 0.5  # what is shorter is rounding
    H = torch.zeros(len(rows), size, size, dtype=torch.float64)
    space = Krylov(by_rows, rows, size, rounding, engine_behind(product))
    for k, column in enumerate(space.columns(rows)):
        known = min(k + 2, size)
        H[:, :known, k] = column[:, :known]
    if not bool(torch.isfinite(H).all()):
        return math.inf
    return float(torch.linalg.eigvals(H).abs().amax())


REMEMBERED = 2**21
"""Entries up to which a random vector is kept for the next call: a GPU would wait for it."""


def random_vector(like: Tensor, seed: int = 0) -> Tensor:
    """A reproducible start for power iterations and probes: independent v_i ∼ N(0, 1).

    >>> legato.gradients.random_vector(torch.zeros(3)).shape
    torch.Size([3])
    """
    kind = like.shape, like.dtype, like.device, seed
    if like.numel() > REMEMBERED or inside_functional_transform() or is_watched():
        return _drawn(*kind)
    return _remembered(*kind).clone()


def _drawn(shape: torch.Size, dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    # On the CPU, whatever the default device: the same numbers everywhere.
    kind = torch.complex128 if dtype.is_complex else torch.float64
    drawn = torch.randn(shape, generator=generator, dtype=kind, device="cpu")
    return drawn.to(device, dtype)


@lru_cache(maxsize=16)
def _remembered(shape: torch.Size, dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    with torch.inference_mode(False):  # what begins there cannot be differentiated elsewhere
        return _drawn(shape, dtype, device, seed)
