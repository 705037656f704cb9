"""The contract of a linear operator, its algebra, and norms by Lanczos' method."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support import tree
from legato._support.tree import Var, tree_map
from legato.errors import InputError


class Operator(ABC):
    """A linear map K with its adjoint, ⟨Kx, y⟩ = ⟨x, K*y⟩.

    Leading axes beyond those the operator acts on are batches. Reference: Chambolle, Pock (2011).

    >>> K = lg.Differences(dims=(-1,)) @ lg.Diagonal(torch.tensor([1.0, 2.0, 3.0]))
    >>> x, y = torch.randn(3), torch.randn(1, 3)
    >>> torch.allclose((K(x) * y).sum(), (x * K.adjoint(y)).sum(), atol=1e-5)
    True
    """

    @abstractmethod
    def __call__(self, x: Var) -> Var:
        """Kx."""

    @abstractmethod
    def adjoint(self, y: Var) -> Var:
        """K*y."""

    def norm(self, like: Var | None = None) -> Tensor:
        """An upper bound of ‖K‖, never attached to a graph.

        Operators that know their norm ignore ``like``. The default estimates it on inputs shaped
        like ``like`` by :func:`lanczos_norm`.
        """
        if like is None:
            raise InputError(
                f"{type(self).__name__} does not know its norm in closed form. Call norm(like=x) "
                "with an example input, or override norm()."
            )
        return lanczos_norm(self, like)

    def absolute(self) -> Operator:
        """The operator whose matrix bounds |K| entrywise from above (for preconditioning)."""
        raise InputError(
            f"{type(self).__name__} does not define absolute(), which diagonal preconditioning "
            "needs. Override it, or use scalar steps."
        )

    @property
    def T(self) -> Operator:
        """The adjoint as an operator."""
        return Adjoint(self)

    def __add__(self, other: Operator) -> Operator:
        return Sum(self, other)

    def __matmul__(self, other: Operator) -> Operator:
        return Composition(self, other)

    def __mul__(self, scale: Tensor | float) -> Operator:
        return Scaled(self, scale)

    __rmul__ = __mul__

    def __neg__(self) -> Operator:
        return Scaled(self, -1.0)

    def __sub__(self, other: Operator) -> Operator:
        return Sum(self, -other)


@torch.no_grad()
def lanczos_norm(operator: Operator, like: Var, accuracy: float = 0.01) -> Tensor:
    r"""An upper bound of ‖K‖, at most ``accuracy`` above it, right with probability 1 − 10⁻⁶.

    Lanczos' method on K*K from a random start underestimates the largest eigenvalue by a factor
    1 − ε with probability at most 1.648 √n exp(−√ε(2q − 1)) after q steps; we take q from that
    bound and divide by 1 − ε. Reference: Kuczyński and Woźniakowski (1992), Theorem 4.2.

    >>> K = lg.Diagonal(torch.tensor([1.0, 2.0, 5.0]))
    >>> legato.operators.lanczos_norm(K, torch.zeros(3)).round(decimals=3)
    tensor(5.)
    """
    shape = tree.flatten(like)
    n = shape.numel()
    eps = 1 - 1 / (1 + accuracy) ** 2
    q = math.ceil(0.5 * (math.log(1.648 * math.sqrt(n) / 1e-6) / math.sqrt(eps) + 1))
    generator = torch.Generator(device="cpu").manual_seed(n)
    v = torch.randn(n, generator=generator, dtype=torch.float64).to(shape)
    v = v / torch.linalg.vector_norm(v)
    size = _power_of_two(operator(tree.unflatten(like, v)))  # K*K itself may over- or underflow
    basis: list[Tensor] = []
    diagonal: list[Tensor] = []
    offdiagonal: list[Tensor] = []
    for _ in range(min(q, n)):
        basis.append(v)
        image = tree_map(lambda t: t / size, operator(tree.unflatten(like, v)))
        w = tree.flatten(operator.adjoint(image)) / size
        diagonal.append(v @ w)
        for _ in range(2):  # reorthogonalise twice: cheap for so few vectors
            stacked = torch.stack(basis)
            w = w - (stacked @ w) @ stacked
        beta = torch.linalg.vector_norm(w)
        offdiagonal.append(beta)
        if not bool(beta > 1e-12 * diagonal[0].abs()):
            break
        v = w / beta
    alpha, beta_ = torch.stack(diagonal).double(), torch.stack(offdiagonal)[:-1].double()
    tridiagonal = torch.diag(alpha) + torch.diag(beta_, 1) + torch.diag(beta_, -1)
    top = torch.linalg.eigvalsh(tridiagonal)[-1].clamp(min=0)
    exact = len(diagonal) == n or len(diagonal) < q
    return (size * top.sqrt() * (1 + 1e-6 if exact else 1 + accuracy)).to(shape)


def _power_of_two(x: Var) -> float:
    """One near the largest entry: dividing by it leaves the digits as they are."""
    largest = max(float(t.abs().amax()) for t in tree.leaves(x))
    return 2.0 ** math.frexp(largest)[1] if 0 < largest < math.inf else 1.0


@dataclass(frozen=True, eq=False)
class Adjoint(Operator):
    """The adjoint of another operator, K*."""

    operator: Operator

    def __call__(self, x: Var) -> Var:
        return self.operator.adjoint(x)

    def adjoint(self, y: Var) -> Var:
        return self.operator(y)

    def norm(self, like: Var | None = None) -> Tensor:
        return self.operator.norm(None if like is None else self.operator.adjoint(like))

    def absolute(self) -> Operator:
        return Adjoint(self.operator.absolute())

    @property
    def T(self) -> Operator:
        return self.operator


@dataclass(frozen=True, eq=False)
class Composition(Operator):
    """One operator after another, (outer ∘ inner)x = outer(inner(x)); ‖·‖ at most the product."""

    outer: Operator
    inner: Operator

    def __call__(self, x: Var) -> Var:
        return self.outer(self.inner(x))

    def adjoint(self, y: Var) -> Var:
        return self.inner.adjoint(self.outer.adjoint(y))

    def norm(self, like: Var | None = None) -> Tensor:
        between = None if like is None else self.inner(like)
        return self.outer.norm(between) * self.inner.norm(like)

    def absolute(self) -> Operator:
        return Composition(self.outer.absolute(), self.inner.absolute())


@dataclass(frozen=True, eq=False)
class Sum(Operator):
    """The sum of two operators between the same spaces; ‖·‖ at most the sum of the norms."""

    first: Operator
    second: Operator

    def __call__(self, x: Var) -> Var:
        return tree_map(torch.add, self.first(x), self.second(x))

    def adjoint(self, y: Var) -> Var:
        return tree_map(torch.add, self.first.adjoint(y), self.second.adjoint(y))

    def norm(self, like: Var | None = None) -> Tensor:
        return self.first.norm(like) + self.second.norm(like)

    def absolute(self) -> Operator:
        return Sum(self.first.absolute(), self.second.absolute())


@dataclass(frozen=True, eq=False)
class Scaled(Operator):
    """A scalar multiple of an operator, cK, with a number or a learned 0-dim tensor c."""

    operator: Operator
    scale: Tensor | float

    def __post_init__(self) -> None:
        if isinstance(self.scale, Tensor) and self.scale.numel() != 1:
            raise InputError(
                f"An operator can be scaled by one number, not by shape "
                f"{tuple(self.scale.shape)}. Compose with Diagonal(d) for entrywise factors."
            )

    def __call__(self, x: Var) -> Var:
        return tree_map(lambda t: self.scale * t, self.operator(x))

    def adjoint(self, y: Var) -> Var:
        return self.operator.adjoint(tree_map(lambda t: self.scale * t, y))

    def norm(self, like: Var | None = None) -> Tensor:
        scale = self.scale.detach() if isinstance(self.scale, Tensor) else self.scale
        return torch.as_tensor(scale).abs() * self.operator.norm(like)

    def absolute(self) -> Operator:
        return Scaled(self.operator.absolute(), torch.as_tensor(self.scale).detach().abs())
