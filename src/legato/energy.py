"""From an energy, a sum of terms, to a problem that an algorithm can solve."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support.checks import is_concrete
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions import (
    BregmanTerm,
    Composed,
    Function,
    Linear,
    Scaled,
    Separable,
    Shifted,
    SquaredDistance,
    Zero,
)
from legato.functions.algebra import (
    add,
    compose,
    is_constraint,
    scale,
    terms_of,
    without_factor,
)
from legato.functions.kernels import same_geometry
from legato.functions.prox import has_prox
from legato.geometry import Euclidean, Geometry, Product
from legato.operators import Composition, Identity, Operator, Stack
from legato.problems import Composite, Problem, Saddle


def split(
    energy: Function, geometry: Geometry | None = None, dual_geometry: Geometry | None = None
) -> Problem:
    r"""The problem that an energy is solved as, whatever the order of its terms.

    .. math:: \sum_j f_j(K_j x) \;=\; f(x) + g(x) + h(Kx)

    The rules, in this order:

    1. g gets one term with a closed-form prox in ``geometry`` (a constraint rather than a norm),
       and the linear and quadratic terms and multiples of that geometry's ψ, which any prox
       absorbs: quadratic ones only with one number as weight where the prox couples entries. It
       takes the terms that have a known prox together, such as norms and bounds of single entries.
    2. f gets the other terms with a gradient, composed ones included.
    3. The rest goes behind the operator: h(Kx), with K a stack and h separable if they are several.
       Each needs a prox of its conjugate in ``dual_geometry`` (Euclidean).
    4. Without a rest and without f, the quadratic terms of g become f: a step is then exact.

    The result is a :class:`Composite` where nothing is left for K, else a :class:`Saddle`, whose
    blocks come in the order in which they are written. Where no splitting exists, the error says
    what was tried.

    >>> y = torch.tensor([0.0, 2.0, 1.0])
    >>> problem = lg.split(lg.SquaredDistance(y) + lg.L1(0.1) @ lg.Differences((-1,)) + lg.L1())
    >>> problem.penalty, problem.operator, problem.nonsmooth, problem.smooth
    (L1(0.1), Differences((-1,)), L1() + SquaredDistance(tensor(3)), Zero())
    """
    terms = terms_of(energy)
    shape = energy.start() if any(map(_hides_operator, terms)) else None
    parts = [_Part.of(term, shape) for term in terms]
    if not isinstance(dual_geometry, Product):  # whose blocks were counted as the terms stand
        parts = [block for part in parts for block in part.blocks()]
    geometry = fitting_geometry(energy) if geometry is None else geometry
    core = _core(parts, geometry)
    if core is not None:
        parts, core = _with_others(core, parts, geometry)
    absorbed = [p for p in parts if p is not core and _is_absorbed(p, core, geometry)]
    others = [p for p in parts if p is not core and p not in absorbed]
    smooth = [p for p in others if p.term.is_smooth]
    behind = [p for p in others if not p.term.is_smooth]
    if not smooth and not behind:
        smooth = [p for p in absorbed if _is_quadratic(p.function)]
        absorbed = [p for p in absorbed if p not in smooth]
    for part in behind:
        _require_dual(part, energy, core, geometry, dual_geometry, len(behind))
    f = _total(smooth)
    g = _total(([] if core is None else [core]) + absorbed)
    if not behind:
        return Composite(f, g)
    if len(behind) == 1:
        return Saddle(behind[0].operator, behind[0].function, f, g)
    return Saddle(
        Stack(*(p.operator for p in behind)), Separable(*(p.function for p in behind)), f, g
    )


@dataclass(frozen=True, eq=False)
class _Part:
    """One term of an energy, as f(Kx)."""

    function: Function
    operator: Operator

    @classmethod
    def of(cls, term: Function, shape: Var | None) -> _Part:
        """The operator is taken out of factors and shifts; ``shape`` is that of x, if known."""
        if isinstance(term, Composed):
            if not _hides_operator(term.function):
                return cls(term.function, term.operator)
            with torch.no_grad():
                image = None if shape is None else term.operator(shape)
            inner = cls.of(term.function, image)
            return cls(inner.function, Composition(inner.operator, term.operator))
        if isinstance(term, Scaled):
            inner = cls.of(term.function, shape)
            if inner.composed:
                return cls(scale(term.factor, inner.function), inner.operator)
        if isinstance(term, Shifted):
            inner = cls.of(term.function, shape)
            if inner.composed:  # f(K(x − c)) = f(Kx − Kc), with Kc as it is now
                c = _as_large_as(shape, term.c)
                return cls(inner.function.shifted(inner.operator(c)), inner.operator)
        return cls(term, Identity())

    def blocks(self) -> list[_Part]:
        """Σ f_i(K_i x) for a separable function of a stack: terms like any other."""
        f, K = self.function, self.operator
        if isinstance(f, Separable) and isinstance(K, Stack) and len(f.blocks) == len(K.operators):
            pairs = zip(f.blocks, K.operators, strict=True)
            return [part for pair in pairs for part in _Part(*pair).blocks()]
        return [self]

    @property
    def composed(self) -> bool:
        return not isinstance(self.operator, Identity)

    @property
    def term(self) -> Function:
        return compose(self.function, self.operator)


def _hides_operator(function: Function) -> bool:
    """Whether a composition stands behind factors and shifts."""
    if isinstance(function, Scaled | Shifted | Composed):
        return isinstance(function.function, Composed) or _hides_operator(function.function)
    return False


def _as_large_as(shape: Var | None, c: Var) -> Var:
    """c as it meets a variable of this shape: K sees what broadcasting would repeat."""
    if shape is None or isinstance(shape, tuple) or isinstance(c, tuple):
        return c
    return c.expand(torch.broadcast_shapes(shape.shape, c.shape))


def _total(parts: list[_Part]) -> Function:
    if not parts:
        return Zero()
    return functools.reduce(add, (p.term for p in parts))


def fitting_geometry(energy: Function) -> Geometry:
    """The geometry of a term εψ, which has a gradient or prox in no other; else the Euclidean."""
    for term in terms_of(energy):
        kernel = without_factor(term)
        if isinstance(kernel, BregmanTerm) and not isinstance(kernel.geometry, Euclidean):
            return kernel.geometry
    return Euclidean()


def _is_quadratic(function: Function) -> bool:
    inner = without_factor(function)
    euclidean = isinstance(inner, BregmanTerm) and isinstance(inner.geometry, Euclidean)
    return euclidean or isinstance(inner, SquaredDistance)


def _core(parts: list[_Part], geometry: Geometry) -> _Part | None:
    """The term whose entry in the table gives the prox: constraints before everything else.

    Among equals the name decides, not the place; terms that look alike keep the order given.
    """
    found = [
        p
        for p in parts
        if not p.composed and not p.term.is_smooth and has_prox(p.function, geometry)
    ]

    best = None
    for part in found:  # min(…, key=…) does not go through torch.compile
        if best is None or _rank(part) < _rank(best):
            best = part
    return best


def _rank(part: _Part) -> tuple[bool, str]:
    """By names, not by the order given; inside a transform the numbers in them cannot be read."""
    name = repr(part.function) if is_concrete() else type(part.function).__name__
    return not is_constraint(part.function), name


def _with_others(core: _Part, parts: list[_Part], geometry: Geometry) -> tuple[list[_Part], _Part]:
    """The core with the other terms that it has one prox with, and the parts with it as one."""
    if not isinstance(geometry, Euclidean):
        return parts, core
    left, joined = [p for p in parts if p is not core], [core]
    while True:  # the first that fits, by rank: whatever the order in which they are written
        more = None
        for part in left:
            if part.composed or part.term.is_smooth or not has_prox(part.function, geometry):
                continue
            whole = functools.reduce(add, (p.function for p in (*joined, part)))
            if has_prox(whole, geometry) and (more is None or _rank(part) < _rank(more)):
                more = part
        if more is None:
            break
        joined.append(more)
        left = [p for p in left if p is not more]
    if len(joined) == 1:
        return parts, core
    # In the order of writing, so that it reads like the energy.
    whole = functools.reduce(add, (p.function for p in parts if any(p is j for j in joined)))
    found = _Part(whole, core.operator)
    return [found if p is core else p for p in parts if p is core or p in left], found


def _is_absorbed(part: _Part, core: _Part | None, geometry: Geometry) -> bool:
    """Whether the prox of the core takes this term in at no cost."""
    if part.composed:
        return False
    inner = without_factor(part.function)
    if isinstance(inner, Linear | Zero):
        return True
    if isinstance(inner, SquaredDistance):
        alike = isinstance(geometry, Euclidean)
    else:
        alike = isinstance(inner, BregmanTerm) and same_geometry(inner.geometry, geometry)
    if not alike or core is None:
        return alike
    weight = inner.weight
    varies = isinstance(weight, Tensor) and weight.numel() > 1
    return not (varies and core.function.prox_couples())


def _require_dual(
    part: _Part,
    energy: Function,
    core: _Part | None,
    geometry: Geometry,
    dual_geometry: Geometry | None,
    count: int,
) -> None:
    """Refuse a term that has neither a gradient nor a prox that could be used behind K."""
    dual = Euclidean() if dual_geometry is None else dual_geometry
    if isinstance(dual, Product) and count > 1:
        return  # blocks have their own geometries; the algorithm looks each of them up
    if count > 1 and not isinstance(dual, Euclidean):
        raise InputError(
            f"{count} terms of {energy!r} go behind an operator, so that there are {count} dual "
            f"variables. Instead of {dual!r} give dual_geometry=Product(…) with a geometry for "
            "each of them, in the order of the terms."
        )
    if has_prox(part.function.conjugate(), dual):
        return
    taken = "nothing has" if core is None else f"{core.function!r} has"
    name = type(without_factor(part.function)).__name__
    raise InputError(
        f"No splitting of {energy!r} exists. {part.term!r} has no gradient, and its conjugate no "
        f"closed-form prox in the dual geometry {dual!r}; as the one term with a prox in "
        f"{geometry!r}, {taken} been taken. Register a prox for {name} with "
        "@legato.register_prox, give a geometry in which it has one, or replace it by "
        "term.smoothed(mu)."
    )
