"""The laws of functions: value, gradient, convexity, batches, conjugate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from legato._support import tree
from legato._support.tree import Var, tree_map
from legato.errors import LawError, MissingConjugateError, MissingProxError
from legato.functions import Function
from legato.functions.prox import has_prox
from legato.geometry import Euclidean
from legato.testing.report import Measured, Report, hold, skip, worst
from legato.testing.sampling import apart, moved, normal, require_double, slope_error, stacked


def check_function(f: Function, x: Var, seed: int = 0) -> Report:
    """Check the laws of a function near a float64 point x of its domain, such as ∇f = grad.

    Its prox has laws of its own: :func:`check_prox`. Raises a :class:`~legato.errors.LawError` for
    the first law that does not hold.

    >>> f = lg.LeastSquares(torch.eye(3).double(), torch.ones(3).double())
    >>> legato.testing.check_function(f, torch.zeros(3).double())["gradient"] < 1e-6
    True
    """
    require_double(x)
    laws = (gradient, lipschitz, convexity, bounds, batches, fenchel_young, moreau)
    return Report(repr(f), tuple(law(f, x, seed) for law in laws))


def domain_points(f: Function, x: Var, count: int, seed: int) -> Iterator[Var]:
    """Random points where f is finite: by its prox if it has one, else not too far from x."""
    for s in range(seed, seed + count):
        direction = normal(x, s)
        if has_prox(f, Euclidean()):
            z = f.prox(moved(x, 2.0, direction))
            if bool(torch.isfinite(f(z))):
                yield z
                continue
        size = 2.0
        while size > 1e-6 and not bool(torch.isfinite(f(moved(x, size, direction)))):
            size /= 2
        yield moved(x, size if size > 1e-6 else 0.0, direction)


def gradient(f: Function, x: Var, seed: int = 0) -> Measured:
    """grad is the derivative of the value, by central differences."""
    law = "gradient"
    if not f.is_smooth:
        return skip(law, "not smooth")
    errors = []
    for z in (x, *domain_points(f, x, 2, seed)):
        at = tree.copy(z)
        slopes = tree.leaves(tree.detach(f.grad(z)))
        errors.append(slope_error(lambda at=at: f(at), tree.leaves(at), slopes, 3, seed))  # type: ignore[misc]
    return hold(law, worst(errors), 1e-6, "Look at grad(): factors, signs, a missing term.")


def lipschitz(f: Function, x: Var, seed: int = 0) -> Measured:
    """‖∇f(x) − ∇f(z)‖ ≤ L‖x − z‖."""
    law = "Lipschitz constant"
    L = f.lipschitz() if f.is_smooth else None
    if L is None:
        return skip(law, "unknown, so that steps need a line search" if f.is_smooth else "none")
    largest = float(torch.as_tensor(L, dtype=torch.float64).detach().amax())
    ratios = []
    for a, b in pairwise([x, *domain_points(f, x, 6, seed)]):
        step = tree_map(torch.sub, b, a)
        for _ in range(10):  # as in the power method: towards where the gradient turns most
            turn = tree_map(torch.sub, f.grad(moved(a, 1.0, step)), f.grad(a))
            distance, length = tree.length(step), tree.length(turn)
            ratios.append(length / (largest * distance + 1e-12 * (1 + distance)))
            further = (
                tree_map(lambda t, d=distance, n=length: t * (d / n), turn) if length else step
            )
            step = further if bool(torch.isfinite(f(moved(a, 1.0, further)))) else step
    return hold(law, worst(ratios), 1 + 1e-9, "lipschitz() is too small: steps would be too long.")


def convexity(f: Function, x: Var, seed: int = 0) -> Measured:
    """f(tx + (1 − t)z) ≤ t f(x) + (1 − t) f(z)."""
    excess = []
    for k, (a, b) in enumerate(pairwise([x, *domain_points(f, x, 20, seed)])):
        t = (k % 9 + 1) / 10
        between = tree_map(lambda u, v, t=t: t * u + (1 - t) * v, a, b)
        ends = [float(f(a)), float(f(b))]
        scale = 1 + abs(ends[0]) + abs(ends[1])
        excess.append((float(f(between)) - t * ends[0] - (1 - t) * ends[1]) / scale)
    look = "The function is not convex: no solver promises anything for it."
    return hold("convexity", worst(excess), 1e-12, look)


def bounds(f: Function, x: Var, seed: int = 0) -> Measured:
    """lo ≤ x ≤ hi where f is finite."""
    if isinstance(x, tuple):
        return skip("bounds", "for single tensors only")
    lo, hi = f.bounds()
    beyond = [0.0]
    for z in domain_points(f, x, 10, seed):
        beyond += [float((lo - z).amax()), float((z - hi).amax())]
    return hold("bounds", worst(beyond), 1e-7, "bounds() is narrower than the domain.")


def batches(f: Function, x: Var, seed: int = 0) -> Measured:
    """values(x, batch) are the values of the elements, and gradients do not mix."""
    law = "batch = elements"
    if f.coupled is None:
        return skip(law, "coupled is None, so that there is no batch")
    points = list(domain_points(f, x, 3, seed))
    singles = torch.stack([f(z) for z in points])
    together = stacked(*points)
    errors = [apart(f.values(together, 1), singles), apart(f(together), singles.sum())]
    if f.is_smooth:
        errors.append(apart(f.grad(together), stacked(*(f.grad(z) for z in points))))
    look = "Elements of a batch must not see each other: look at summands() and values()."
    return hold(law, worst(errors), 1e-10, look)


def fenchel_young(f: Function, x: Var, seed: int = 0) -> Measured:
    """f(x) + f*(p) = ⟨x, p⟩ for a subgradient p at x, and ≥ for any other point."""
    law = "Fenchel–Young"
    conjugate = f.conjugate()
    if conjugate.conjugate() is not f:
        raise LawError(f"The law “{law}” does not hold: f.conjugate().conjugate() is not f.")
    errors = []
    try:
        for s in range(seed, seed + 5):
            z, p = _subgradient_pair(f, x, s)
            known = conjugate(p)
            size = 1 + abs(float(f(z))) + abs(float(known))
            errors.append(abs(float(f(z) + known - tree.inner(z, p))) / size)
            for other in domain_points(f, x, 5, s + 100):
                errors.append(float(tree.inner(other, p) - f(other) - known) / size)
    except (MissingConjugateError, MissingProxError):
        return skip(law, "the conjugate has no known value")
    look = "Look at the conjugate's value: constants, factors, its domain."
    return hold(law, worst(errors), 1e-9, look)


def _subgradient_pair(f: Function, x: Var, seed: int) -> tuple[Var, Var]:
    """A point and a subgradient there, by the prox or by the gradient."""
    y = moved(x, 2.0, normal(x, seed))
    if has_prox(f, Euclidean()):
        z = f.prox(y, 0.6)
        return z, tree_map(lambda s, t: (s - t) / 0.6, y, z)
    if f.is_smooth:
        (z,) = domain_points(f, x, 1, seed)
        return z, f.grad(z)
    raise MissingConjugateError("There is neither a prox nor a gradient to find a pair with.")


def moreau(f: Function, x: Var, seed: int = 0) -> Measured:
    """prox of αf at y, plus α times the prox of f*/α at y/α, is y."""
    law = "Moreau's identity"
    if not (has_prox(f, Euclidean()) and has_prox(f.conjugate(), Euclidean())):
        return skip(law, "no Euclidean prox of both f and f*")
    errors = []
    for s in range(seed, seed + 3):
        y = moved(x, 2.0, normal(x, s))
        dual = f.conjugate().prox(tree_map(lambda t: t / 0.6, y), 1 / 0.6)
        errors.append(apart(moved(f.prox(y, 0.6), 0.6, dual), y))
    return hold(law, worst(errors), 1e-10, "Look at the prox, and at the conjugate's.")
