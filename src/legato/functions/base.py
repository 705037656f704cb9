"""The contract of a function, its sums, and the two terms that go with every geometry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import require_nonnegative
from legato._support.tree import Var, tree_map
from legato.errors import InputError, MissingConjugateError
from legato.functions.curvature import hessian_by_autograd
from legato.geometry import Entropy, Euclidean, Geometry


def indicator(violation: Tensor) -> Tensor:
    """0 where the largest violation is rounding (at most √eps), +∞ where it is real."""
    worst = violation.amax()
    tolerance = torch.finfo(worst.dtype).eps ** 0.5
    return torch.where(worst > tolerance, torch.full_like(worst, torch.inf), 0 * worst.detach())


class Split(NamedTuple):
    """A sum taken apart for its prox: core(x) + ⟨shift, x⟩ + epsilon·ψ(x)."""

    core: Function
    shift: Any = None
    epsilon: Any = None


class Function(ABC):
    """A convex function, g(tx + (1 − t)z) ≤ tg(x) + (1 − t)g(z); its kind says what it can do.

    Every function has a ``value``. Smooth ones have ``grad`` and a ``lipschitz`` constant;
    prox-friendly ones have an entry in the table of closed forms (:mod:`legato.functions.prox`);
    some know their ``conjugate``. Reference: Bauschke and Combettes (2017).

    >>> f = lg.LeastSquares(torch.eye(2), torch.ones(2)) + lg.SquaredNorm(1.0)
    >>> f.value(torch.zeros(2)), f.grad(torch.zeros(2))
    (tensor(1.), tensor([-1., -1.]))
    >>> f.is_smooth, lg.L1().is_smooth
    (True, False)
    """

    @abstractmethod
    def value(self, x: Var) -> Tensor:
        """f(x), summed over all entries and batches; +∞ where a constraint is violated."""

    def grad(self, x: Var) -> Var:
        """∇f(x)."""
        raise InputError(
            f"{type(self).__name__} is not smooth: it has a prox, not a gradient. Pass it as the "
            "nonsmooth term, or replace it by legato.smoothed(problem, mu)."
        )

    @property
    def is_smooth(self) -> bool:
        return type(self).grad is not Function.grad

    def hessian(self, x: Tensor) -> Tensor:
        """∇²f(x), (…, n, n) for x of shape (…, n) whose leading axes are a batch.

        Its leading axes broadcast against those of x: what a batch shares is given once. Without a
        closed form the gradient is differentiated, which takes n products.
        """
        if not self.is_smooth:
            raise InputError(
                f"{type(self).__name__} is not smooth: it has no Hessian. Use ForwardBackward, "
                "which needs its prox only, or legato.smoothed(problem, mu)."
            )
        return hessian_by_autograd(self.grad, x, type(self).__name__)

    def lipschitz(self) -> Tensor | float | None:
        """A Lipschitz constant of ∇f, or None where it is unknown."""
        return None

    def conjugate(self, y: Var) -> Tensor:
        """f*(y) = sup_x ⟨x, y⟩ − f(x), +∞ outside its domain."""
        raise MissingConjugateError(
            f"The conjugate of {type(self).__name__} is not known in closed form, so the "
            "primal–dual gap cannot be computed. Use the residual instead."
        )

    def start(self) -> Var | None:
        """Zeros of the shape this function acts on, or None where its data do not tell."""
        return None

    def range_projector(self, y: Var) -> Callable[[Var], Var] | None:
        """v ↦ Πv onto the range of the derivative of the Euclidean prox at y, if it is known.

        Needed only where that derivative is no multiple of a projection: see ``CG``.
        """
        return None

    def shared_dims(self) -> tuple[int, ...]:
        """Axes along which a prox step must be constant (only preconditioning needs them)."""
        return ()

    def split(self, geometry: Geometry) -> Split:
        return Split(self)

    def __add__(self, other: Function) -> Function:
        return Sum(*_terms(self), *_terms(other))


def _terms(function: Function) -> tuple[Function, ...]:
    return function.terms if isinstance(function, Sum) else (function,)


@dataclass(frozen=True, eq=False)
class Zero(Function):
    """No term at all, g(x) = 0 on the geometry's domain.

    Reference: Bauschke and Combettes (2017).

    >>> lg.prox(lg.Zero(), lg.Euclidean(), torch.tensor([3.0, -2.0]), 1.0)
    tensor([ 3., -2.])
    """

    def value(self, x: Var) -> Tensor:
        return tree.leaves(x)[0].new_zeros(())

    def grad(self, x: Var) -> Var:
        return tree_map(torch.zeros_like, x)

    def hessian(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[-1], x.shape[-1])

    def lipschitz(self) -> float:
        return 0.0

    def conjugate(self, y: Var) -> Tensor:
        return indicator(tree.flatten(y).abs())


@dataclass(frozen=True, eq=False)
class Linear(Function):
    r"""A linear term, g(x) = ⟨c, x⟩; in a sum it only shifts the argument of the other's prox.

    .. math:: \mathrm{prox}_{α(g + ⟨c, ·⟩)}(y) = \mathrm{prox}_{αg}(y − αc)

    Reference: Section 6.3 of Ochs et al. (2016).

    >>> g = lg.NonNegative() + lg.Linear(torch.tensor([1.0, -1.0]))
    >>> lg.prox(g, lg.Euclidean(), torch.zeros(2), 0.5)
    tensor([0.0000, 0.5000])
    """

    c: Tensor

    def value(self, x: Var) -> Tensor:
        return (self.c * x).sum()

    def grad(self, x: Var) -> Var:
        return self.c.expand_as(x)

    def hessian(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[-1], x.shape[-1])

    def lipschitz(self) -> float:
        return 0.0

    def conjugate(self, y: Var) -> Tensor:
        return indicator((y - self.c).abs())

    def start(self) -> Var | None:
        return torch.zeros_like(self.c)

    def split(self, geometry: Geometry) -> Split:
        return Split(Zero(), shift=self.c)


@dataclass(frozen=True, eq=False)
class Kernel(Function):
    r"""A multiple of a geometry's own ψ, g(x) = ε ψ(x), which makes a solution unique.

    .. math:: \mathrm{prox}_{α(g + εψ)}(y) = \mathrm{prox}_{\frac{α}{1+αε} g}(y / (1 + αε))

    In the geometry ψ it costs one division. See :func:`SquaredNorm` and :func:`NegativeEntropy`.
    Reference: Nesterov (2005), smoothing.

    >>> ridge = lg.Kernel(lg.Euclidean(), 3.0)
    >>> lg.prox(ridge, lg.Euclidean(), torch.tensor([8.0]), 1.0)  # y/(1 + αε)
    tensor([2.])
    """

    geometry: Geometry
    weight: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of a kernel")

    def value(self, x: Var) -> Tensor:
        weight = self.weight
        if isinstance(weight, Tensor) and weight.ndim > 0:
            if isinstance(self.geometry, Euclidean):
                return 0.5 * (weight * x * x).sum()
            if weight.numel() > 1:
                raise InputError(
                    f"The value of a kernel of {self.geometry!r} needs a scalar weight, not one of "
                    f"shape {tuple(weight.shape)}."
                )
            weight = weight.reshape(())
        return weight * self.geometry.value(x)

    def grad(self, x: Var) -> Var:
        return tree_map(lambda t: self.weight * t, self.geometry.mirror(x))

    def hessian(self, x: Tensor) -> Tensor:
        if not isinstance(self.geometry, Euclidean):
            return super().hessian(x)
        weight = torch.as_tensor(self.weight, dtype=x.dtype, device=x.device)
        if weight.ndim == 0 or weight.shape[-1] == 1:
            weight = weight.expand(*weight.shape[:-1], x.shape[-1])
        return torch.diag_embed(weight)

    def lipschitz(self) -> Tensor | float | None:
        if not isinstance(self.geometry, Euclidean):
            return None
        return self.weight.detach() if isinstance(self.weight, Tensor) else self.weight

    def conjugate(self, y: Var) -> Tensor:
        return Sum(self).conjugate(y)

    def split(self, geometry: Geometry) -> Split:
        return Sum(self).split(geometry)


def SquaredNorm(weight: Tensor | float = 1.0) -> Kernel:
    """Half a squared norm, g(x) = ε/2 ‖x‖² (ridge, weight decay, the elastic net's second part).

    Reference: Zou and Hastie (2005) for the elastic net.

    >>> lg.SquaredNorm(2.0).value(torch.tensor([1.0, 2.0]))
    tensor(5.)
    >>> lg.prox(lg.L1(1.0) + lg.SquaredNorm(1.0), lg.Euclidean(), torch.tensor([5.0]), 1.0)
    tensor([2.])
    """
    return Kernel(Euclidean(), weight)


def NegativeEntropy(weight: Tensor | float = 1.0) -> Kernel:
    """The negative entropy, g(x) = ε Σ x log x; on the simplex it makes solutions unique.

    Reference: Nesterov (2005), smoothing.

    >>> g = lg.Simplex() + lg.NegativeEntropy(1.0) + lg.Linear(torch.tensor([0.0, 1.0]))
    >>> x = lg.prox(g, lg.Entropy(), torch.zeros(2), 1e6)  # nearly the minimiser: softmax(−c)
    >>> torch.allclose(x, torch.softmax(torch.tensor([0.0, -1.0]), 0), atol=1e-4)
    True
    """
    return Kernel(Entropy(), weight)


class Sum(Function):
    r"""A sum of functions: smooth ones, or one prox-friendly core with Linear and Kernel terms.

    .. math:: f(x) = \sum_j f_j(x)

    Written with ``+``. Reference: Combettes and Pesquet (2011), Table 10.1.

    >>> type(lg.L1(1.0) + lg.Linear(torch.ones(2))).__name__
    'Sum'
    >>> (lg.L1(1.0) + lg.Linear(torch.ones(2))).value(torch.tensor([1.0, -2.0]))
    tensor(2.)
    """

    def __init__(self, *terms: Function) -> None:
        self.terms = terms
        self._split: tuple[Geometry, Split] | None = None

    def value(self, x: Var) -> Tensor:
        return torch.stack([term.value(x) for term in self.terms]).sum()

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

    def lipschitz(self) -> Tensor | float | None:
        constants = [term.lipschitz() for term in self.terms]
        known = [c for c in constants if c is not None]
        return sum(known[1:], start=known[0]) if len(known) == len(constants) else None

    def start(self) -> Var | None:
        found = [s for s in (term.start() for term in self.terms) if s is not None]
        return found[0] if found else None

    def shared_dims(self) -> tuple[int, ...]:
        return tuple(d for term in self.terms for d in term.shared_dims())

    def split(self, geometry: Geometry) -> Split:
        if self._split is not None and self._split[0] is geometry:
            return self._split[1]
        kernels = [t for t in self.terms if isinstance(t, Kernel)]
        shifts = [t.c for t in self.terms if isinstance(t, Linear)]
        cores = [t for t in self.terms if not isinstance(t, (Kernel, Linear, Zero))]
        if len(cores) > 1:
            names = " + ".join(type(t).__name__ for t in cores)
            raise InputError(
                f"{names} has no closed-form prox: a sum may hold one prox-friendly term besides "
                "Linear and kernel terms. Move one of them to the smooth term, or to the dual of a "
                "Saddle problem (L1 + NonNegative is AsymmetricL1(-inf, weight))."
            )
        for kernel in kernels:
            alike = kernel.geometry is geometry or (
                type(kernel.geometry) is type(geometry) and not vars(geometry)
            )
            if not alike:
                raise InputError(
                    f"A kernel of {kernel.geometry!r} has a closed-form prox in its own geometry "
                    f"only, not in {geometry!r}. Give the algorithm geometry="
                    f"{kernel.geometry!r}, or move the kernel to the smooth term."
                )
        result = Split(
            core=cores[0] if cores else Zero(),
            shift=sum(shifts[1:], start=shifts[0]) if shifts else None,
            epsilon=(
                sum((k.weight for k in kernels[1:]), start=kernels[0].weight) if kernels else None
            ),
        )
        if len(shifts) <= 1 and len(kernels) <= 1:  # sums of tensors belong to one graph only
            self._split = (geometry, result)
        return result

    def conjugate(self, y: Var) -> Tensor:
        """Closed form for a core with known conjugate plus Linear, or with any strict kernel.

        With εψ in the sum the supremum is attained at a prox of the core, so it can be evaluated.
        """
        from legato.functions.prox import prox  # the table stands on this module

        kernels = [t for t in self.terms if isinstance(t, Kernel)]
        geometry = kernels[0].geometry if kernels else Euclidean()
        core, shift, epsilon = self.split(geometry)
        if shift is not None:
            y = y - shift
        if epsilon is None:
            return core.conjugate(y)
        x = prox(core, geometry, tree_map(lambda t: t / epsilon, y), 1 / epsilon)
        return tree.inner(x, y) - core.value(x) - epsilon * geometry.value(x)


class Separable(Function):
    r"""One function for each block of a tuple.

    .. math:: g(x_1, …, x_k) = g_1(x_1) + … + g_k(x_k)

    Goes with :class:`~legato.Product` and :class:`~legato.Stack`. Reference: Condat (2013).

    >>> g = lg.Separable(lg.NonNegative(), lg.L1(1.0))
    >>> y = (torch.tensor([-1.0]), torch.tensor([3.0]))
    >>> lg.prox(g, lg.Product(lg.Euclidean(), lg.Euclidean()), y, 1.0)
    (tensor([0.]), tensor([2.]))
    """

    def __init__(self, *blocks: Function) -> None:
        if not blocks:
            raise InputError("Separable needs at least one function.")
        self.blocks = blocks

    def value(self, x: Var) -> Tensor:
        pairs = zip(self.blocks, x, strict=True)
        return torch.stack([g.value(part) for g, part in pairs]).sum()

    @property
    def is_smooth(self) -> bool:
        return all(block.is_smooth for block in self.blocks)

    def grad(self, x: Var) -> Var:
        return tuple(g.grad(part) for g, part in zip(self.blocks, x, strict=True))

    def conjugate(self, y: Var) -> Tensor:
        pairs = zip(self.blocks, y, strict=True)
        return torch.stack([g.conjugate(part) for g, part in pairs]).sum()

    def start(self) -> Var | None:
        parts = tuple(block.start() for block in self.blocks)
        return None if any(p is None for p in parts) else parts
