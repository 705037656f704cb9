"""Functions made of functions: sums, multiples, compositions, shifts, conjugates.

Nothing is multiplied, negated or conjugated when such a function is made. Factors and shifts apply
inside value, grad and prox, so that a parameter may change between two uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import holds, require_nonnegative, require_tensor
from legato._support.given import given, meant
from legato._support.holding import short
from legato._support.tree import Var, expand_over, largest_over, tree_map
from legato.errors import InputError, MissingConjugateError
from legato.functions.base import Function, ProxParts
from legato.functions.complexity import require_same_numbers
from legato.functions.restricted import Columns
from legato.functions.shapes import coupled_through, first_start, most_coupled, start_behind
from legato.geometry import Euclidean, Geometry
from legato.operators import Composition, Differences, Identity, Operator, as_operator


def add(first: Function, second: Function) -> Function:
    """f + g, with nested sums laid flat."""
    if not isinstance(second, Function):
        raise InputError(
            f"A term can be added to a term, not to {given(second)}.{meant(second)} Wrap a "
            "differentiable callable as legato.Smooth(callable), a vector as legato.Linear(c)."
        )
    return Sum(*terms_of(first), *terms_of(second))


def scale(factor: Tensor | float, function: Function) -> Function:
    """c·f; a sum is scaled term by term, a composition inside."""
    if isinstance(factor, Tensor) and factor.ndim > 0:
        raise InputError(
            f"A function is scaled by one number, not by a tensor of shape {tuple(factor.shape)}. "
            "A weight for each entry is an argument of the term, as in L1(weight)."
        )
    if not isinstance(factor, Tensor | Real) or isinstance(factor, bool):
        raise InputError(f"A function is scaled by a number, not by {type(factor).__name__}.")
    factor = factor if isinstance(factor, Tensor | int) else float(factor)  # a NumPy number
    require_nonnegative(factor, "The factor in front of a function")
    if isinstance(function, Sum):
        return Sum(*(scale(factor, term) for term in function.terms))
    if isinstance(function, Composed):
        return Composed(scale(factor, function.function), function.operator)
    return Scaled(factor, function)


def compose(function: Function, operator: Operator | Tensor) -> Function:
    """f∘K; a sum is composed term by term, K₁ after K₂ is one operator."""
    operator = as_operator(operator)
    if isinstance(operator, Identity):
        return function
    if isinstance(function, Sum):
        return Sum(*(compose(term, operator) for term in function.terms))
    if isinstance(function, Composed):
        return Composed(function.function, Composition(function.operator, operator))
    _require_axis(function, operator)
    return Composed(function, operator)


def _require_axis(function: Function, operator: Operator) -> None:
    """Refuse groups along no axis in particular behind differences: they would be columns."""
    from legato.functions.norms import GroupL1

    while isinstance(function, Scaled | Shifted):
        function = function.function
    if not isinstance(function, GroupL1) or not isinstance(operator, Differences):
        return
    if function.dim is None and function.groups is None:
        axis = -operator.coupled[1]
        raise InputError(
            f"GroupL1 behind Differences needs its axis: dim={axis} takes the norm over the "
            "directions, as isotropic total variation does (IsotropicTV(weight) is short for it); "
            "dim=-1, the default elsewhere, would group the entries of each row."
        )


def shift(function: Function, c: Tensor) -> Function:
    """x ↦ f(x − c); a sum is shifted term by term."""
    if isinstance(c, int | float):
        raise InputError(
            f"A function is shifted by a tensor, not by {type(c).__name__}. Write a number as "
            "torch.full_like(x, c)."
        )
    for part in tree.leaves(c):
        require_tensor(part, "What a function is shifted by")
    if isinstance(function, Sum):
        return Sum(*(shift(term, c) for term in function.terms))
    return Shifted(function, c)


def terms_of(function: Function) -> tuple[Function, ...]:
    """The terms of a sum, or the function itself."""
    return function.terms if isinstance(function, Sum) else (function,)


def is_constraint(function: Function) -> bool:
    """Whether a function is 0 on a set and +∞ outside, so that a factor changes nothing."""
    from legato.functions.affine import Equality
    from legato.functions.sets import Indicator

    if isinstance(function, Scaled | Shifted):
        return is_constraint(function.function)
    return isinstance(function, Indicator | Equality)


class Sum(Function):
    r"""A sum of functions, written with ``+``.

    .. math:: f(x) = \sum_j f_j(x)

    It is smooth if all terms are. It has a prox if at most one term needs an entry of the table;
    the others are linear or multiples of the geometry's own ψ, which any prox absorbs. Norms and
    bounds of single entries count as one term, also before groups that are kept from falling below
    zero, and after :class:`Monotone` and :class:`TotalVariation1D` where they are alike for all.
    Reference: Combettes and Pesquet (2011), Table 10.1; Yu (2013).

    >>> g = lg.L1(1.0) + lg.Linear(torch.ones(2))
    >>> g, g(torch.tensor([1.0, -2.0]))
    (L1() + Linear(tensor(2)), tensor(2.))
    """

    takes_complex: ClassVar[bool] = True

    def __init__(self, *terms: Function) -> None:
        self.terms = terms

    def value(self, x: Var) -> Tensor:
        return self.values(x, 0)

    def values(self, x: Var, batch: int) -> Tensor:
        parts = [term.values(x, batch) for term in self.terms]
        return sum(parts[1:], start=parts[0])

    @property
    def coupled(self) -> int | None:
        return most_coupled(term.coupled for term in self.terms)

    def start(self) -> Var | None:
        return first_start(self.terms)

    def weight_shape(self) -> torch.Size:
        return tree.joint_shape(*(term.weight_shape() for term in self.terms))

    def bounds(self) -> tuple[Any, Any]:
        pairs = [term.bounds() for term in self.terms]
        finite = [p for p in pairs if not _is_unbounded(p)]
        return finite[0] if finite else pairs[0]

    @property
    def is_smooth(self) -> bool:
        return all(term.is_smooth for term in self.terms)

    def grad(self, x: Var) -> Var:
        total = self.terms[0].grad(x)
        for term in self.terms[1:]:
            total = tree_map(torch.add, total, term.grad(x))
        return total

    def hessian(self, x: Tensor) -> Tensor:
        total = self.terms[0].hessian(x)
        for term in self.terms[1:]:
            total = total + term.hessian(x)
        return total

    def hessian_on(self, x: Var, columns: Columns) -> Tensor:
        total = self.terms[0].hessian_on(x, columns)
        for term in self.terms[1:]:
            total = total + term.hessian_on(x, columns)
        return total

    def lipschitz(self) -> Tensor | float | None:
        total: Any = 0.0
        for term in self.terms:
            constant = term.lipschitz()
            if constant is None:
                return None
            total = constant + total
        return total

    def prox_couples(self) -> tuple[int, ...]:
        return tuple(d for term in self.terms for d in term.prox_couples())

    def prox_parts(self, geometry: Geometry) -> ProxParts:
        cores: list[tuple[Function, Any]] = []
        epsilon = None
        shifts: tuple[tuple[Any, Any], ...] = ()
        for term in self.terms:
            part = term.prox_parts(geometry)
            if not _is_zero(part.core):
                cores.append((part.core, part.scale))
            shifts = shifts + part.shifts
            if part.epsilon is not None:
                epsilon = part.epsilon if epsilon is None else epsilon + part.epsilon
        if len(cores) < 2:
            core, factor = cores[0] if cores else (_nothing(), None)
            return ProxParts(core, factor, shifts, epsilon)
        return ProxParts(self._joined(cores, geometry), None, shifts, epsilon)

    def _joined(self, cores: list[tuple[Function, Any]], geometry: Geometry) -> Function:
        """One term for several, where their sum has a closed form."""
        from legato.functions.sums import together  # which imports this module

        found = together(cores) if isinstance(geometry, Euclidean) else None
        if found is None:
            raise InputError(
                f"{' + '.join(repr(core) for core, _ in cores)} has no closed-form prox: a sum may "
                "hold one prox-friendly term besides linear ones and multiples of the geometry's "
                "own kernel, or a sum that is known, such as norms and bounds of single entries "
                "(L1 + L1, L1 + Box), L1 + GroupL1, or Monotone + NonNegative. Give the energy to "
                "legato.solve, which splits it, or move one of them to the smooth term or behind "
                "the operator of a Saddle problem."
            )
        return found

    def smoothed(self, mu: Tensor | float) -> Function:
        return sum((term.smoothed(mu) for term in self.terms[1:]), self.terms[0].smoothed(mu))

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        """Closed form for a core with known conjugate plus linear terms, or with any kernel εψ.

        With εψ in the sum the supremum is attained at a prox of the core, so it can be evaluated.
        """
        from legato.functions.prox import prox  # which imports this module

        plain = map(without_factor, self.terms)
        geometry = next((t.geometry for t in plain if hasattr(t, "geometry")), Euclidean())
        core, factor, shifts, epsilon = self.prox_parts(geometry)
        if epsilon is not None and not holds(torch.as_tensor(epsilon) > 0):
            raise MissingConjugateError(
                f"The conjugate of {self!r} is not known in closed form where a quadratic term or "
                "kernel has weight 0, so the primal–dual gap cannot be computed. Use the residual "
                "instead."
            )
        argument = y
        for amount, c in shifts:
            argument = tree.sub_scaled(argument, amount, c)
        scaled = core if factor is None else Scaled(factor, core)
        if epsilon is None:
            return scaled.conjugate().values(argument, batch)
        x = prox(scaled, geometry, tree_map(lambda t: t / epsilon, argument), 1 / epsilon)
        return tree.inner(x, y, batch) - self.values(x, batch)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))


@dataclass(frozen=True, eq=False, repr=False)
class Scaled(Function):
    """A non-negative multiple, c·f(x), written with a number in front.

    >>> (3.0 * lg.L1())(torch.tensor([1.0, -1.0])), (2.0 * lg.L1()).prox(torch.tensor([3.0]))
    (tensor(6.), tensor([1.]))
    """

    takes_complex: ClassVar[bool] = True
    nonnegative: ClassVar[tuple[str, ...]] = ("factor",)

    factor: Tensor | float
    function: Function

    def value(self, x: Var) -> Tensor:
        return self._times(self.function.value(x))

    def values(self, x: Var, batch: int) -> Tensor:
        return self._times(self.function.values(x, batch))

    def _times(self, value: Tensor) -> Tensor:
        """Infinity stays infinity for c = 0, too: a factor does not lift a constraint."""
        outside = torch.isposinf(value)
        return torch.where(outside, value, self.factor * torch.where(outside, 0.0, value))

    @property
    def coupled(self) -> int | None:
        return self.function.coupled

    def start(self) -> Var | None:
        return self.function.start()

    def weight_shape(self) -> torch.Size:
        return self.function.weight_shape()

    def bounds(self) -> tuple[Any, Any]:
        return self.function.bounds()

    @property
    def is_smooth(self) -> bool:
        return self.function.is_smooth

    def grad(self, x: Var) -> Var:
        return tree_map(lambda t: self.factor * t, self.function.grad(x))

    def hessian(self, x: Tensor) -> Tensor:
        return self.factor * self.function.hessian(x)

    def hessian_on(self, x: Var, columns: Columns) -> Tensor:
        factor = self.factor.detach() if isinstance(self.factor, Tensor) else self.factor
        return factor * self.function.hessian_on(x, columns)

    def lipschitz(self) -> Tensor | float | None:
        constant = self.function.lipschitz()
        return None if constant is None else self.factor * constant

    def prox_couples(self) -> tuple[int, ...]:
        return self.function.prox_couples()

    def prox_parts(self, geometry: Geometry) -> ProxParts:
        core, factor, shifts, epsilon = self.function.prox_parts(geometry)
        c = self.factor
        return ProxParts(
            core,
            c if factor is None else c * factor,
            tuple((c * amount, part) for amount, part in shifts),
            None if epsilon is None else c * epsilon,
        )

    def smoothed(self, mu: Tensor | float) -> Function:
        return scale(self.factor, self.function.smoothed(mu))

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        if is_constraint(self.function):  # c·f is f
            return self.function.conjugate().values(y, batch)
        if float(self.factor) == 0:  # the conjugate of 0 is the indicator of {0}
            return _nothing().conjugate().values(y, batch)
        inner = tree_map(lambda t: t / self.factor, y)
        return self.factor * self.function.conjugate().values(inner, batch)

    def __repr__(self) -> str:
        return f"{short(self.factor)} * {_bracketed(self.function)}"


@dataclass(frozen=True, eq=False, repr=False)
class Composed(Function):
    r"""A function of what an operator sees, f(Kx), written ``f @ K``.

    It has a gradient, K*∇f(Kx), if f is smooth; ‖K‖² L_f is a Lipschitz constant of it. Behind an
    orthonormal operator, a multiple of one, and for single entries a diagonal, it has a prox, with
    the ties of f's.

    .. math:: \mathrm{prox}_{αf∘K}(y) = \tfrac1{c^2} K^*\mathrm{prox}_{c^2αf}(Ky)
              \quad\text{for } K^*K = KK^* = c^2

    >>> A = torch.tensor([[1.0, 1.0]])
    >>> f = lg.SquaredDistance(torch.tensor([3.0])) @ A
    >>> f(torch.ones(2)), f.grad(torch.ones(2))
    (tensor(0.5000), tensor([-1., -1.]))
    """

    takes_complex: ClassVar[bool] = True

    function: Function
    operator: Operator

    def value(self, x: Var) -> Tensor:
        return self.function.value(self.operator(x))

    def values(self, x: Var, batch: int) -> Tensor:
        return self.function.values(self.operator(x), batch)

    @property
    def coupled(self) -> int | None:
        return coupled_through(self.operator, self.function)

    def start(self) -> Var | None:
        return start_behind(self.operator, self.function)

    @property
    def is_smooth(self) -> bool:
        return self.function.is_smooth

    def grad(self, x: Var) -> Var:
        found = self.operator.adjoint(self.function.grad(self.operator(x)))
        return require_same_numbers(x, found)

    def lipschitz(self) -> Tensor | float | None:
        constant = self.function.lipschitz()
        if constant is None:
            return None
        axes = self.operator.coupled
        norm = self.operator.norm(self.start())
        if isinstance(constant, Tensor) and constant.ndim > 0:  # it broadcasts against Kx
            inner = constant.ndim if axes is None else axes[1]
            constant = largest_over(constant, inner)
        return expand_over(constant * norm**2, 0 if axes is None else axes[0])

    def prox_couples(self) -> tuple[int, ...]:
        """Those of f, and where the prox passes through an operator, the axes which that mixes."""
        from legato.functions.compositions import mixed_by, passes  # which imports this module

        if not passes(self.function, self.operator):  # a linear system, solved for any step
            return ()
        return tuple({*self.function.prox_couples(), *mixed_by(self.operator)})

    def smoothed(self, mu: Tensor | float) -> Function:
        return compose(self.function.smoothed(mu), self.operator)

    def __repr__(self) -> str:
        return f"{_bracketed(self.function)} @ {self.operator!r}"


@dataclass(frozen=True, eq=False, repr=False)
class Shifted(Function):
    """A function moved by c, x ↦ f(x − c), written ``f.shifted(c)``; its prox has f's ties, moved.

    >>> f = lg.L1().shifted(torch.tensor([1.0, 2.0]))
    >>> f(torch.tensor([1.0, 0.0])), f.prox(torch.tensor([5.0, 2.5]))
    (tensor(2.), tensor([4., 2.]))
    """

    takes_complex: ClassVar[bool] = True

    function: Function
    c: Tensor

    def _moved(self, x: Var) -> Var:
        return tree_map(torch.sub, x, self.c) if isinstance(x, tuple) else x - self.c

    def value(self, x: Var) -> Tensor:
        return self.function.value(self._moved(x))

    def values(self, x: Var, batch: int) -> Tensor:
        return self.function.values(self._moved(x), batch)

    @property
    def coupled(self) -> int | None:
        return self.function.coupled

    def start(self) -> Var | None:
        found, c = self.function.start(), tree_map(torch.zeros_like, self.c)
        if found is None or isinstance(found, tuple):
            return c if found is None else found
        return found + c

    def bounds(self) -> tuple[Any, Any]:
        lo, hi = pair = self.function.bounds()
        return pair if _is_unbounded(pair) else (lo + self.c, hi + self.c)

    @property
    def is_smooth(self) -> bool:
        return self.function.is_smooth

    def grad(self, x: Var) -> Var:
        return self.function.grad(self._moved(x))

    def hessian(self, x: Tensor) -> Tensor:
        return self.function.hessian(self._moved(x))

    def lipschitz(self) -> Tensor | float | None:
        return self.function.lipschitz()

    def prox_couples(self) -> tuple[int, ...]:
        return self.function.prox_couples()

    def range_projector(self, y: Var) -> Callable[[Var], Var] | None:
        return self.function.range_projector(self._moved(y))

    def kinks(self, y: Tensor, step: Any) -> Tensor | None:
        return self.function.kinks(self._moved(y), step)

    def smoothed(self, mu: Tensor | float) -> Function:
        return Shifted(self.function.smoothed(mu), self.c)

    def make_conjugate(self) -> Function:
        from legato.functions.affine import Linear

        return self.function.conjugate() + Linear(self.c)

    def __repr__(self) -> str:
        return f"{_bracketed(self.function)}.shifted({short(self.c)})"


@dataclass(frozen=True, eq=False, repr=False)
class Conjugate(Function):
    """The conjugate of a function that has no name for it; its Euclidean prox is Moreau's.

    .. math:: \\mathrm{prox}_{σf^*}(y) = y − σ\\,\\mathrm{prox}_{f/σ}(y/σ)

    At ties its derivative is the one that goes with f's.
    Reference: Moreau (1965).

    >>> largest = lg.Simplex().conjugate()
    >>> largest, largest(torch.tensor([1.0, 3.0, 2.0])), largest.conjugate()
    (Simplex().conjugate(), tensor(3.), Simplex())
    """

    takes_complex: ClassVar[bool] = True

    function: Function

    def value(self, x: Var) -> Tensor:
        return self.function.conjugate_values(x)

    def values(self, x: Var, batch: int) -> Tensor:
        return self.function.conjugate_values(x, batch)

    @property
    def coupled(self) -> int | None:
        return self.function.coupled

    def start(self) -> Var | None:
        return self.function.start()

    def prox_couples(self) -> tuple[int, ...]:
        return self.function.prox_couples()

    def kinks(self, y: Tensor, step: Any) -> Tensor | None:
        inner = self.function.kinks(y / step, 1 / step)
        return None if inner is None else step * inner

    def __repr__(self) -> str:
        return f"{_bracketed(self.function)}.conjugate()"


def without_factor(function: Function) -> Any:
    """The function behind the numbers in front of it."""
    return without_factor(function.function) if isinstance(function, Scaled) else function


def _is_unbounded(pair: tuple[Any, Any]) -> bool:
    return all(isinstance(end, float) and end in (torch.inf, -torch.inf) for end in pair)


def _nothing() -> Function:
    from legato.functions.affine import Zero

    return Zero()


def _is_zero(function: Function) -> bool:
    from legato.functions.affine import Zero

    return isinstance(function, Zero)


def _bracketed(function: Function) -> str:
    text = repr(function)
    return f"({text})" if isinstance(function, Sum | Scaled | Composed) else text
