"""The laws of functions: value, gradient, convexity, batches, conjugate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from legato._support import tree
from legato._support.checks import as_number
from legato._support.tree import Var, tree_map
from legato.errors import InputError, MissingConjugateError, MissingProxError
from legato.functions import Function
from legato.functions.prox import has_prox
from legato.geometry import Euclidean
from legato.testing import sampling
from legato.testing.report import Measured, Report, hold, skip
from legato.testing.sampling import apart, batch_law, minus, moved, normal, slope_errors

STEP = 0.6
"""Of the proxes in the laws of a conjugate: any number but 1 shows where a step is forgotten."""


def check_function(f: Function, x: Var, seed: int = 0) -> Report:
    """Check the laws of a function near a float64 point x of its domain, such as ∇f = grad.

    Its prox has laws of its own: :func:`check_prox`. Raises a :class:`~legato.errors.LawError` for
    the first law that does not hold.

    >>> f = lg.LeastSquares(torch.eye(3).double(), torch.ones(3).double())
    >>> legato.testing.check_function(f, torch.zeros(3).double())["gradient"] < 1e-6
    True
    """
    sampling.require_double(x)
    if not bool(torch.isfinite(f(x))):
        raise InputError(f"{f!r} is not finite at x: pass a point of its domain.")
    laws = (gradient, lipschitz, convexity, bounds, batches, fenchel_young, moreau, nan)
    return Report(repr(f), tuple(law(f, x, seed) for law in laws))


def domain_points(f: Function, x: Var, count: int, seed: int) -> Iterator[Var]:
    """Random points where f is finite: by its prox if it has one, else not too far from x."""
    for s in range(seed, seed + count):
        direction = normal(x, s)
        candidates = [moved(x, size, direction) for size in (2.0, 1.0, 0.5, 0.1, 1e-3, 0.0)]
        if has_prox(f, Euclidean()):
            candidates.insert(0, f.prox(candidates[0]))
        yield next(z for z in candidates if bool(torch.isfinite(f(z))))


def gradient(f: Function, x: Var, seed: int = 0) -> Measured:
    """grad is the derivative of the value, by central differences."""
    if not f.is_smooth:
        return skip("gradient", "not smooth")
    errors = []
    for z in (x, *domain_points(f, x, 2, seed)):
        at, slopes = tree.copy(z), tree.leaves(tree.detach(f.grad(z)))
        errors += slope_errors(lambda at=at: f(at), tree.leaves(at), slopes, seed)  # type: ignore[misc]
    return hold("gradient", errors, 1e-6, "Look at grad(): factors, signs, a missing term.")


def lipschitz(f: Function, x: Var, seed: int = 0) -> Measured:
    """‖∇f(x) − ∇f(z)‖ ≤ L‖x − z‖, measured as their quotient."""
    L = f.lipschitz() if f.is_smooth else None
    if L is None:
        return skip("Lipschitz constant", "unknown: steps need a line search, or a prox")
    largest = float(torch.as_tensor(L, dtype=torch.float64).detach().amax())
    ratios = []
    for a, b in pairwise([x, *domain_points(f, x, 6, seed)]):
        step = minus(b, a)
        for _ in range(10):  # as in the power method: towards where the gradient turns most
            turn = minus(f.grad(moved(a, 1.0, step)), f.grad(a))
            distance, length = tree.length(step), tree.length(turn)
            ratios.append(length / (largest * distance + 1e-12 * (1 + distance)))
            further = moved(tree_map(torch.zeros_like, a), distance / max(length, 1e-30), turn)
            step = further if bool(torch.isfinite(f(moved(a, 1.0, further)))) else step
    look = "lipschitz() is too small: steps would be too long."
    return hold("Lipschitz constant", ratios, 1 + 1e-9, look)


def convexity(f: Function, x: Var, seed: int = 0) -> Measured:
    """f(tx + (1 − t)z) ≤ t f(x) + (1 − t) f(z)."""
    excess = []
    for k, (a, b) in enumerate(pairwise([x, *domain_points(f, x, 20, seed)])):
        t = (k % 9 + 1) / 10
        ends = [as_number(f(a)), as_number(f(b))]
        between = as_number(f(moved(b, t, minus(a, b))))
        scale = 1 + abs(ends[0]) + abs(ends[1])
        excess.append((between - t * ends[0] - (1 - t) * ends[1]) / scale)
    look = "The function is not convex: no solver promises anything for it."
    return hold("convexity", excess, 1e-12, look)


def bounds(f: Function, x: Var, seed: int = 0) -> Measured:
    """lo ≤ x ≤ hi where f is finite."""
    if isinstance(x, tuple) or x.is_complex():
        return skip("bounds", "for single real tensors only")
    (lo, hi), points = f.bounds(), list(domain_points(f, x, 10, seed))
    beyond = [as_number(side.amax()) for z in points for side in (lo - z, z - hi)]
    return hold("bounds", beyond, 1e-7, "bounds() is narrower than the domain.")


def batches(f: Function, x: Var, seed: int = 0) -> Measured:
    """values(x, batch) are the values of the elements, and gradients do not mix."""
    points = list(domain_points(f, x, 3, seed))
    values = (lambda z: f.values(z, z.ndim - x.ndim), points)
    return batch_law(f.coupled, values, *([(f.grad, points)] if f.is_smooth else []))


def fenchel_young(f: Function, x: Var, seed: int = 0) -> Measured:
    """f(x) + f*(p) = ⟨x, p⟩ for a subgradient p at x, ≥ for any other; and f** is f."""
    law = "Fenchel–Young"
    conjugate = f.conjugate()
    errors = [float(conjugate.conjugate() is not f)]
    try:
        for s in range(seed, seed + 5):
            z, p = _subgradient_pair(f, x, s)
            known = conjugate(p)
            size = 1 + abs(as_number(f(z))) + abs(as_number(known))
            errors.append(abs(as_number(f(z) + known - tree.inner(z, p))) / size)
            for other in domain_points(f, x, 5, s + 100):
                errors.append(as_number(tree.inner(other, p) - f(other) - known) / size)
    except (MissingConjugateError, MissingProxError):
        return skip(law, "the conjugate has no known value")
    look = "Look at the conjugate: constants, factors, its domain; its conjugate is f itself."
    return hold(law, errors, 1e-9, look)


def _subgradient_pair(f: Function, x: Var, seed: int) -> tuple[Var, Var]:
    """A point and a subgradient there, by the prox or by the gradient."""
    if has_prox(f, Euclidean()):
        y = moved(x, 2.0, normal(x, seed))
        z = f.prox(y, STEP)
        return z, tree_map(lambda s, t: (s - t) / STEP, y, z)
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
        dual = f.conjugate().prox(tree_map(lambda t: t / STEP, y), 1 / STEP)
        errors.append(apart(moved(f.prox(y, STEP), STEP, dual), y))
    return hold(law, errors, 1e-10, "Look at the prox, and at the conjugate's.")


def nan(f: Function, x: Var, seed: int = 0) -> Measured:
    """A point with an entry that is NaN has no value, unless f does not depend on x at all."""
    law = "NaN in, NaN out"
    if all(as_number(f(moved(x, size, normal(x, seed)))) == 0 for size in (0.0, 1e-3, 1e3)):
        return skip(law, "the function is zero everywhere")
    finite = []
    for number in range(len(tree.leaves(x))):
        y = tree.copy(x)
        tree.leaves(y)[number].view(-1)[0] = torch.nan
        finite.append(torch.isfinite(f(y)))
    look = "NaN went in and a number came out: comparisons and torch.where lose it."
    return hold(law, finite, 0, look)
