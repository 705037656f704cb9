"""The laws of linear operators."""

from __future__ import annotations

import torch
from torch import Tensor

from legato._support import tree
from legato._support.tree import Var, tree_map
from legato.errors import InputError, LawError
from legato.operators import Operator, lanczos_norm
from legato.testing.report import Measured, Report, hold, skip, worst
from legato.testing.sampling import apart, normal, replica, slope_error, stacked

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
        if [t.shape for t in tree.leaves(back)] != [t.shape for t in tree.leaves(x)]:
            raise LawError("The law “adjoint identity” does not hold: K*Kx is not shaped like x.")
        scale = max(tree.length(image) * tree.length(y), tree.length(x) * tree.length(back))
        errors.append(abs(tree.dot(image, y) - tree.dot(x, back)) / scale if scale > 0 else 0.0)
    look = "Look at adjoint(): its sign, its factors, and what it does at the borders."
    return hold("adjoint identity", worst(errors), _rounding(x), look)


def linearity(K: Operator, x: Var, seed: int = 0) -> Measured:
    """K(2x − 3z) = 2Kx − 3Kz, and the same for K*."""
    x, z = normal(x, seed), normal(x, seed + 1)
    y, w = (normal(K(x), seed + s) for s in (2, 3))
    errors = []
    for map_, a, b in ((K, x, z), (K.adjoint, y, w)):
        one, other = map_(a), map_(b)
        together = map_(tree_map(lambda s, t: 2 * s - 3 * t, a, b))
        expected = tree_map(lambda s, t: 2 * s - 3 * t, one, other)
        scale = max(tree.length(one), tree.length(other), 1e-30)
        errors.append(apart(together, expected, scale))
    look = "An operator has no offset, no clamp and no memory of earlier calls."
    return hold("linearity", worst(errors), _rounding(x), look)


def norm_bound(K: Operator, x: Var, seed: int = 0) -> Measured:
    """norm() ≥ ‖K‖ for each element of a batch, also after the tensors of K have changed."""
    look = "norm() is too small, so that steps are too long."
    ratio = 1.0
    for change, blame in ((1.0, look), (3.0, "norm() remembers a value that is out of date.")):
        K, held = replica(K)
        K.norm(x)
        with torch.no_grad():
            for tensor in held:
                tensor.mul_(change)
        true, bound = true_norm(K, x), K.norm(x).to(torch.float64)
        true = true if bound.ndim else true.amax()
        positive = true > 0
        over = torch.where(positive, bound / true.where(positive, 1.0), torch.inf)
        hold("norm is an upper bound", worst([(1 - over).amax()]), _rounding(x), blame)
        ratio = float(over.amax()) if change == 1.0 else ratio
    return Measured("norm over true norm", ratio, note="an upper bound: at least 1")


def true_norm(K: Operator, x: Var) -> Tensor:
    """‖K‖ for each element of a batch, where norm() has their shape."""
    if tree.flatten(x).numel() > LARGEST_WRITTEN_OUT:
        return lanczos_norm(K, x).double() / 1.01
    return torch.linalg.matrix_norm(written_out(K, x).double(), ord=2)


@torch.no_grad()
def written_out(K: Operator, x: Var) -> Tensor:
    """The matrix of K, one for each element of a batch: unit vectors go into all at once."""
    batch = 0 if K.coupled is None or isinstance(x, tuple) else max(0, x.ndim - K.coupled[0])
    inner = tree_map(lambda t: t[(0,) * batch], x)
    columns = []
    for unit in torch.eye(tree.flatten(inner).numel()).to(tree.leaves(x)[0]):
        e = tree.unflatten(inner, unit)
        image = K(tree_map(lambda s, t: s.expand(t.shape).clone(), e, x))
        columns.append(torch.cat([t.reshape(*t.shape[:batch], -1) for t in tree.leaves(image)], -1))
    return torch.stack(columns, -1)


def batches(K: Operator, x: Var, seed: int = 0) -> Measured:
    """K and K* of a batch are those of its elements, along a new first axis."""
    law = "batch = elements"
    if K.coupled is None:
        return skip(law, "coupled is None, so that there is no batch")
    points = [normal(x, seed + s) for s in range(3)]
    images = [K(p) for p in points]
    back = [K.adjoint(y) for y in images]
    error = worst([apart(K(stacked(*points)), stacked(*images), 1e-30),
                   apart(K.adjoint(stacked(*images)), stacked(*back), 1e-30)])  # fmt: skip
    look = "Elements of a batch must not see each other: look at axes that count from the front."
    return hold(law, error, _rounding(x), look)


def absolute_bound(K: Operator, x: Var, seed: int = 0) -> Measured:
    """absolute() bounds every entry of the matrix of K."""
    law = "absolute bounds entries"
    try:
        above = K.absolute()
    except InputError:
        return skip(law, "absolute() is not defined; preconditioning needs it")
    if tree.flatten(x).numel() > LARGEST_WRITTEN_OUT // 4:
        return skip(law, "too large to be written out; pass a smaller x")
    entries = written_out(K, x).abs()
    short = (entries - written_out(above, x)).amax() / entries.amax().clamp(min=1e-30)
    return hold(law, short.clamp(min=0), _rounding(x), "Look at absolute().")


def derivatives(K: Operator, x: Var, seed: int = 0) -> Measured:
    """Kx and K*y have the right derivatives in every tensor that K holds."""
    law = "derivatives in its tensors"
    K, held = replica(K)
    if not held or any(t.dtype != torch.float64 for t in held):
        return skip(law, "it holds no tensors" if not held else "pass float64 tensors")
    x = normal(x, seed)
    y = normal(tree.detach(K(x)), seed + 1)
    error = slope_error(lambda: (K(x), K.adjoint(y)), held, seed=seed)
    return hold(law, error, 1e-6, "A tensor is detached, or its derivative is wrong.")


def _rounding(x: Var) -> float:
    return 5000 * torch.finfo(tree.leaves(x)[0].dtype).eps
