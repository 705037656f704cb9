"""The contract of a linear operator, its algebra, and norms by Lanczos' method."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from legato._support import tree
from legato._support.constants import held_constant
from legato._support.given import given, meant
from legato._support.holding import Holder, short
from legato._support.products import times_tensor
from legato._support.tree import Var, tree_map
from legato.errors import InputError


def _as_tensor(norm: Callable[..., Any]) -> Callable[..., Tensor]:
    """What a norm returns, as a tensor beside its example."""

    @functools.wraps(norm)
    def found(self: Operator, like: Var | None = None) -> Tensor:
        size = norm(self, like)
        if isinstance(size, Tensor):
            return size
        number = torch.tensor(float(size))
        return number if like is None else number.to(tree.real_like(tree.leaves(like)[0]))

    return found


class Operator(Holder, ABC):
    """A linear map K with its adjoint, ⟨Kx, y⟩ = ⟨x, K*y⟩.

    Leading axes beyond those the operator acts on are batches. Complex numbers are pairs of real
    ones, with the inner product Re⟨x, y⟩. Reference: Chambolle, Pock (2011).

    >>> K = lg.Differences(dims=(-1,)) @ lg.Diagonal(torch.tensor([1.0, 2.0, 3.0]))
    >>> x, y = torch.randn(3), torch.randn(1, 3)
    >>> torch.allclose((K(x) * y).sum(), (x * K.adjoint(y)).sum(), atol=1e-5)
    True
    """

    def __init_subclass__(cls, **others: Any) -> None:
        """The norm of a class of your own may be a number: it becomes a tensor."""
        super().__init_subclass__(**others)
        if "norm" in vars(cls):
            cls.norm = _as_tensor(cls.norm)  # type: ignore[method-assign]

    @abstractmethod
    def __call__(self, x: Var) -> Var:
        """Kx."""

    @abstractmethod
    def adjoint(self, y: Var) -> Var:
        """K*y."""

    @property
    def coupled(self) -> tuple[int, int] | None:
        """How many trailing axes of x and of Kx belong together; axes before are a batch.

        None: all of them, which is right for every operator but knows no batch.
        """
        return None

    def start(self) -> Var | None:
        """Zeros of the shape that K acts on, or None where its data do not tell."""
        return None

    def start_behind(self, y: Var) -> Var:
        """Zeros of the shape of K*y; by the product itself where nothing sooner is known."""
        with torch.no_grad():
            return tree_map(torch.zeros_like, self.adjoint(y))

    def norm(self, like: Var | None = None) -> Tensor:
        """An upper bound of ‖K‖, attached to the graph where it is known in closed form.

        Where K differs along batch axes (see ``coupled``), it has their shape. Operators that know
        their norm ignore ``like``. The default estimates it on inputs shaped
        like ``like`` by :func:`lanczos_norm`, which is a constant for derivatives.
        """
        if like is None:
            raise InputError(
                f"{type(self).__name__} does not know its norm in closed form. Call norm(like=x) "
                "with an example input, or override norm()."
            )
        held_constant(self)
        return lanczos_norm(self, like)

    def less(self, x: Var, b: Tensor) -> Tensor:
        """Kx − b, in one operation where there is one."""
        return self(x) - b

    def pulled(self, x: Var, step: float, r: Var) -> Var:
        """x − step·K*r, likewise."""
        return tree.sub_scaled(x, step, self.adjoint(r))

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

    def __mul__(self, scale: Tensor | complex) -> Operator:
        return Scaled(self, scale)

    __rmul__ = __mul__
    __torch_function__: ClassVar[Any] = classmethod(times_tensor)

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
    n = int(shape.numel())
    eps = 1 - 1 / (1 + accuracy) ** 2
    q = math.ceil(0.5 * (math.log(1.648 * math.sqrt(n) / 1e-6) / math.sqrt(eps) + 1))
    # Random for torch neither: vmap would ask what to do with that, and a tracer record it.
    v = torch.from_numpy(np.random.default_rng(n).standard_normal(n)).to(shape.device, shape.dtype)
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
    return (size * top.sqrt() * (1 + 1e-6 if exact else 1 + accuracy)).to(shape.dtype)


def _power_of_two(x: Var) -> float:
    """One near the largest entry: dividing by it leaves the digits as they are."""
    largest = max(float(t.abs().amax()) for t in tree.leaves(x))
    return 2.0 ** math.frexp(largest)[1] if 0 < largest < math.inf else 1.0


def common_norms(parts: list[tuple[Operator, Var | None, int | None]]) -> Tensor:
    """Norms of an operator's parts for the batch axes of the whole, one beside the other.

    A part that couples fewer axes than the whole has one norm for each index of the axes that it
    leaves to a batch: over so many of them (None: all) the largest counts.
    """
    norms = []
    for part, like, surplus in parts:
        norm = part.norm(like)
        norms.append(tree.largest_over(norm, norm.ndim if surplus is None else surplus))
    return torch.stack(torch.broadcast_tensors(*norms))


def surplus_axes(whole: Operator, part: Operator) -> int | None:
    """How many more axes of x the whole couples than a part of it; None where that is unknown."""
    if whole.coupled is None or part.coupled is None:
        return None
    return whole.coupled[0] - part.coupled[0]


def entrywise(operator: Operator, factors: Tensor | float, t: Tensor) -> Tensor:
    """factors · t; where their shapes do not fit, an error that says so."""
    try:
        return factors * t
    except RuntimeError:
        if isinstance(factors, Tensor):
            raise InputError(
                f"The factors of {operator!r} have shape {tuple(factors.shape)}, which does not "
                f"broadcast against {tuple(t.shape)}, what they multiply."
            ) from None
        raise


def by_parts(move: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A real linear map of real numbers, or of the real and the imaginary parts of complex ones."""
    return torch.complex(move(x.real), move(x.imag)) if x.is_complex() else move(x)


def conjugated(factor: Any) -> Any:
    """The complex conjugate of a number or tensor."""
    return factor.conj() if isinstance(factor, Tensor) else factor.conjugate()


def as_operator(operator: Operator | Tensor) -> Operator:
    """A matrix is a Dense operator, or a Sparse one; an operator stays what it is.

    >>> as_operator(torch.eye(2)), as_operator(lg.Identity())
    (Dense(tensor(2×2)), Identity())
    """
    if isinstance(operator, Operator):
        return operator
    if isinstance(operator, Tensor):
        from legato.operators.dense import Dense
        from legato.operators.sparse import Sparse

        return Dense(operator) if operator.layout is torch.strided else Sparse(operator)
    raise InputError(
        "An operator must be a matrix, dense or sparse, or a legato operator, not "
        f"{given(operator)}. Convert an array with torch.as_tensor, a matrix of SciPy with "
        f"lg.Sparse, or write a small Operator with __call__ and adjoint.{meant(operator)}"
    )


@dataclass(frozen=True, eq=False, repr=False)
class Adjoint(Operator):
    """The adjoint of another operator, K*."""

    operator: Operator

    def __call__(self, x: Var) -> Var:
        return self.operator.adjoint(x)

    def adjoint(self, y: Var) -> Var:
        return self.operator(y)

    def norm(self, like: Var | None = None) -> Tensor:
        return self.operator.norm(None if like is None else self.operator.adjoint(like))

    @property
    def coupled(self) -> tuple[int, int] | None:
        axes = self.operator.coupled
        return None if axes is None else (axes[1], axes[0])

    def absolute(self) -> Operator:
        return Adjoint(self.operator.absolute())

    @property
    def T(self) -> Operator:
        return self.operator


@dataclass(frozen=True, eq=False, repr=False)
class Composition(Operator):
    """One operator after another, (outer ∘ inner)x = outer(inner(x)); ‖·‖ at most the product.

    >>> lg.Diagonal(torch.tensor([2.0])) @ lg.Differences((-1,))
    Diagonal(2) @ Differences((-1,))
    """

    outer: Operator
    inner: Operator

    def __call__(self, x: Var) -> Var:
        return self.outer(self.inner(x))

    def adjoint(self, y: Var) -> Var:
        return self.inner.adjoint(self.outer.adjoint(y))

    @property
    def coupled(self) -> tuple[int, int] | None:
        if self.inner.coupled is None or self.outer.coupled is None:
            return None
        (before, between), (seen, after) = self.inner.coupled, self.outer.coupled
        return before + max(0, seen - between), after + max(0, between - seen)

    def start(self) -> Var | None:
        return self.inner.start()

    def norm(self, like: Var | None = None) -> Tensor:
        between = None if like is None else self.inner(like)
        inner = outer = None
        if self.inner.coupled is not None and self.outer.coupled is not None:
            made, seen = self.inner.coupled[1], self.outer.coupled[0]
            inner, outer = max(0, seen - made), max(0, made - seen)
        norms = common_norms([(self.outer, between, outer), (self.inner, like, inner)])
        return norms[0] * norms[1]

    def __repr__(self) -> str:
        return f"{self.outer!r} @ {self.inner!r}"

    def absolute(self) -> Operator:
        return Composition(self.outer.absolute(), self.inner.absolute())


@dataclass(frozen=True, eq=False, repr=False)
class Sum(Operator):
    """The sum of two operators between the same spaces; ‖·‖ at most the sum of the norms."""

    first: Operator
    second: Operator

    def __call__(self, x: Var) -> Var:
        return tree_map(torch.add, self.first(x), self.second(x))

    def adjoint(self, y: Var) -> Var:
        return tree_map(torch.add, self.first.adjoint(y), self.second.adjoint(y))

    @property
    def coupled(self) -> tuple[int, int] | None:
        if self.first.coupled is None or self.second.coupled is None:
            return None
        pairs = zip(self.first.coupled, self.second.coupled, strict=True)
        before, after = map(max, pairs)
        return before, after

    def norm(self, like: Var | None = None) -> Tensor:
        parts = (self.first, self.second)
        return common_norms([(K, like, surplus_axes(self, K)) for K in parts]).sum(0)

    def __repr__(self) -> str:
        return f"({self.first!r} + {self.second!r})"

    def absolute(self) -> Operator:
        return Sum(self.first.absolute(), self.second.absolute())


@dataclass(frozen=True, eq=False, repr=False)
class Scaled(Operator):
    """A scalar multiple of an operator, cK, with a number or a learned 0-dim tensor c."""

    operator: Operator
    scale: Tensor | complex

    def __post_init__(self) -> None:
        if isinstance(self.scale, Tensor) and self.scale.numel() != 1:
            raise InputError(
                f"An operator can be scaled by one number, not by shape "
                f"{tuple(self.scale.shape)}. Compose with Diagonal(d) for entrywise factors."
            )

    @property
    def coupled(self) -> tuple[int, int] | None:
        return self.operator.coupled

    def __call__(self, x: Var) -> Var:
        return tree_map(lambda t: self.scale * t, self.operator(x))

    def adjoint(self, y: Var) -> Var:
        scale = conjugated(self.scale)
        return self.operator.adjoint(tree_map(lambda t: scale * t, y))

    def start(self) -> Var | None:
        return self.operator.start()

    def norm(self, like: Var | None = None) -> Tensor:
        return self._size * self.operator.norm(like)

    @property
    def _size(self) -> Tensor | float:
        """|c|."""
        return self.scale.abs() if isinstance(self.scale, Tensor) else abs(self.scale)

    def __repr__(self) -> str:
        return f"{short(self.scale)} * {self.operator!r}"

    def absolute(self) -> Operator:
        return Scaled(self.operator.absolute(), self._size)
