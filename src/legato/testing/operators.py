"""The laws of linear operators."""

from __future__ import annotations

import torch
from torch import Tensor

from legato._support import tree
from legato._support.tree import Var, tree_map
from legato.errors import InputError
from legato.operators import Operator, lanczos_norm
from legato.testing.report import Measured, Report, hold, skip
from legato.testing.sampling import apart, batch_law, normal, replica, slope_errors

LARGEST_WRITTEN_OUT = 1000
"""Entries of x up to which K is written out as a matrix; above, Lanczos' method has its norm."""


def check_operator(K: Operator, x: Var, seed: int = 0) -> Report:
    """Check the laws of an operator at inputs of the shape of x, first ⟨Kx, y⟩ = ⟨x, K*y⟩.

    Raises a :class:`~legato.errors.LawError` for the first law that does not hold.

    >>> legato.testing.check_operator(lg.Differences(), torch.zeros(4, 5).double())
    Differences()
      adjoint identity                  ...
    """
    laws = (adjoint_identity, linearity, norm_bound, batches, absolute_bound, derivatives)
    return Report(repr(K), tuple(law(K, x, seed) for law in laws))


def adjoint_identity(K: Operator, x: Var, seed: int = 0) -> Measured:
    """⟨Kx, y⟩ = ⟨x, K*y⟩."""
    errors = []
    for s in range(seed, seed + 3):
        x = normal(x, s)
        image = K(x)
        y = normal(image, s + 100)
        back = K.adjoint(y)
        shapes = [[t.shape for t in tree.leaves(point)] for point in (back, x)]
        errors.append(0.0 if shapes[0] == shapes[1] else torch.inf)
        scale = max(tree.length(image) * tree.length(y), tree.length(x) * tree.length(back))
        errors.append(abs(tree.dot(image, y) - tree.dot(x, back)) / max(scale, 1e-30))
    look = "Look at adjoint(): shape, sign, factors, and what it does at the borders."
    return hold("adjoint identity", errors, _rounding(x), look)


def linearity(K: Operator, x: Var, seed: int = 0) -> Measured:
    """K(2x − 3z) = 2Kx − 3Kz; that of K* follows from the adjoint identity."""
    x, z = normal(x, seed), normal(x, seed + 1)
    together = K(tree_map(lambda s, t: 2 * s - 3 * t, x, z))
    one, other = K(x), K(z)
    scale = max(tree.length(one), tree.length(other), 1e-30)
    error = apart(together, tree_map(lambda s, t: 2 * s - 3 * t, one, other), scale)
    look = "An operator has no offset, no clamp and no memory of earlier calls."
    return hold("linearity", [error], _rounding(x), look)


def norm_bound(K: Operator, x: Var, seed: int = 0) -> Measured:
    """norm() ≥ ‖K‖ for each element of a batch, also after the tensors of K have changed."""
    ratios = []
    for factor, look in (
        (1.0, "norm() is too small, so that steps would be too long."),
        (3.0, "norm() remembers a value that is out of date."),
    ):
        K, held = replica(K)
        K.norm(x)
        with torch.no_grad():
            for tensor in held:
                tensor.mul_(factor)
        bound, true = K.norm(x).detach().double(), true_norm(K, x)
        true = true if bound.ndim else true.amax()
        ratio = torch.where(true > 0, bound / true, torch.inf)
        hold("norm is an upper bound", [(1 - ratio).amax()], _rounding(x), look)
        ratios.append(float(ratio.amax()))
    return Measured("norm over true norm", ratios[0], note="an upper bound: at least 1")


def true_norm(K: Operator, x: Var) -> Tensor:
    """‖K‖ for each element of a batch."""
    if tree.flatten(x).numel() > LARGEST_WRITTEN_OUT:
        return lanczos_norm(K, x).double() / 1.01
    return torch.linalg.matrix_norm(written_out(K, x).double(), ord=2)


@torch.no_grad()
def written_out(K: Operator, x: Var) -> Tensor:
    """The matrix of K, one for each element of a batch: unit vectors go into all at once.

    Of complex numbers it has a row, or a column, for each of their two parts.
    """
    batch = 0 if K.coupled is None or isinstance(x, tuple) else max(0, x.ndim - K.coupled[0])
    inner = tree_map(lambda t: t[(0,) * batch], x)
    columns = []
    numbers = tree.flatten(inner)
    for unit in torch.eye(numbers.numel()).to(numbers):
        e = tree.unflatten(inner, unit)
        image = K(tree_map(lambda s, t: s.expand(t.shape).clone(), e, x))
        parts = [tree.as_real(t).reshape(*t.shape[:batch], -1) for t in tree.leaves(image)]
        columns.append(torch.cat(parts, -1))
    return torch.stack(columns, -1)


def batches(K: Operator, x: Var, seed: int = 0) -> Measured:
    """K and K* of a batch are those of its elements."""
    points = [normal(x, seed + s) for s in range(3)]
    return batch_law(K.coupled, (K, points), (K.adjoint, [K(z) for z in points]))


def absolute_bound(K: Operator, x: Var, seed: int = 0) -> Measured:
    """absolute() bounds every entry of the matrix of K."""
    law = "absolute bounds entries"
    try:
        above = written_out(K.absolute(), x)
    except InputError:
        return skip(law, "absolute() is not defined; preconditioning needs it")
    entries = written_out(K, x).abs()
    kinds = {t.is_complex() for part in (x, K(x)) for t in tree.leaves(part)}
    if len(kinds) > 1:
        return skip(law, "it maps between real and complex numbers")
    if True in kinds:  # moduli of entries are 2 × 2 blocks here
        entries, above = (m[..., ::2].unflatten(-2, (-1, 2)).norm(dim=-2) for m in (entries, above))
    short = (entries - above).amax() / entries.amax().clamp(min=1e-30)
    return hold(law, [short], _rounding(x), "Look at absolute().")


def derivatives(K: Operator, x: Var, seed: int = 0) -> Measured:
    """Kx and K*y have the right derivatives in every tensor that K holds."""
    law = "derivatives in its tensors"
    K, held = replica(K)
    if not held or any(tree.real_dtype(t.dtype) != torch.float64 for t in held):
        return skip(law, "it holds no tensors" if not held else "pass float64 tensors")
    x = normal(x, seed)
    y = normal(tree.detach(K(x)), seed + 1)
    errors = slope_errors(lambda: (K(x), K.adjoint(y)), held, seed=seed)
    return hold(law, errors, 1e-6, "A tensor is detached, or its derivative is wrong.")


def _rounding(x: Var) -> float:
    return 5000 * torch.finfo(tree.leaves(x)[0].dtype).eps
