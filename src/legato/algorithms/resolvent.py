"""The prox of a term whichever way there is one: by the table, or by a linear system."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from legato._support import tree
from legato._support.tree import Var, tree_map
from legato.errors import InputError
from legato.functions import Function, mirror_prox
from legato.functions.prox import has_prox
from legato.functions.quadratics import Factor, System, is_quadratic
from legato.geometry import Euclidean
from legato.operators import Identity


def require_resolvent(f: Function, who: str) -> None:
    """Refuse a term that has no prox in either way."""
    if not (is_quadratic(f) or has_prox(f, Euclidean())):
        raise InputError(
            f"{who} needs a prox of {f!r}, which is neither quadratic nor in the table of proxes. "
            "Use ForwardBackward or PrimalDual, which take its gradient."
        )


def prepared(f: Function, x: Var, alpha: Any) -> Factor:
    """What all points share, attached to f and α."""
    return _system(f).factor(x, 1 / alpha) if is_quadratic(f) else ()


def resolved(f: Function, factor: Factor, v: Var, alpha: Any, start: Var, batch: int) -> Var:
    r"""argmin_x α f(x) + ½‖x − v‖².

    .. math:: (∇²f + \tfrac1α)\, x = \tfrac1α v − ∇f(0) \quad\text{where f is quadratic}
    """
    if not is_quadratic(f):
        return mirror_prox(f, Euclidean(), v, alpha)
    rho = 1 / alpha
    at_zero = f.grad(tree_map(_zeros, v))
    right = tree_map(lambda t, g: rho * t - g, v, at_zero)
    return _system(f).solve(factor, right, rho, tree.detach(start), batch)


def _zeros(t: Tensor) -> Tensor:
    return 0 * t.detach()


def _system(f: Function) -> System:
    return System(f, (Identity(),))
