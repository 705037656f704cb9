"""Operators of other libraries, and any linear function, as legato's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato._support.tree import Var, product, real_dtype
from legato.errors import InputError
from legato.operators.base import Operator

Shape = tuple[int, ...]


def from_function(
    forward: Callable[[Tensor], Tensor],
    shape: Shape,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Operator:
    r"""A linear function written in torch as an operator; autograd finds its adjoint.

    .. math:: K^*y = ∇_x ⟨K x, y⟩

    It is tried on random vectors when it is made: a function that is not linear is refused.

    Args:
        forward: x ↦ Kx for a tensor of this shape, without batch axes.
        shape: the shape of x.
        dtype, device: what it is tried with; a complex dtype for complex x.

    >>> K = legato.operators.from_function(lambda x: x.flip(0).cumsum(0), (3,))
    >>> K(torch.tensor([1.0, 2.0, 3.0])), K.adjoint(torch.tensor([1.0, 0.0, 0.0]))
    (tensor([3., 5., 6.]), tensor([0., 0., 1.]))
    """
    made = _Traced(forward, tuple(shape), dtype.is_complex, dtype, device)
    with torch.no_grad():
        x, z = (_normal(shape, seed, dtype, device) for seed in (0, 1))
        _untouched(made, x, "The function")
        _require_linear(made, x, z)
    _require_derivative(made, made.adjoint, x, "The function")
    require_adjoint(made, x)
    return made


def _untouched(map_: Callable[[Tensor], Tensor], t: Tensor, name: str) -> Tensor:
    """What a map makes of t, which has to stay as it is."""
    before = t.clone()
    found = map_(t)
    if not torch.equal(t, before):
        raise InputError(
            f"{name} overwrites what it is given: computed in place, x would change under the "
            "algorithm. Leave out methods such as mul_ and clamp_, or begin with x.clone()."
        )
    return found


def _require_linear(made: Operator, x: Tensor, z: Tensor) -> None:
    together, apart = made(2 * x - 3 * z), 2 * made(x) - 3 * made(z)
    off = float((together - apart).norm() / (1e-30 + apart.norm()))
    if not off <= 5000 * torch.finfo(x.dtype).eps:
        raise InputError(
            f"The function is not linear: K(2x − 3z) and 2Kx − 3Kz differ by {off:.1e} of their "
            "size. Leave offsets, clamps, noise and normalisations out of it."
        )


def from_scipy(operator: Any) -> Operator:
    """A SciPy LinearOperator, sparse matrix or array, acting on the last axis, on the CPU.

    Kx is its ``matvec`` and K*y its ``rmatvec``, which are compared when it is made: an operator
    whose adjoint is wrong is refused, and told by how much.

    >>> import scipy.sparse
    >>> K = legato.operators.from_scipy(scipy.sparse.eye(3).tocsr() * 2)
    >>> K(torch.ones(3)), K.adjoint(torch.ones(3))
    (tensor([2., 2., 2.]), tensor([2., 2., 2.]))
    """
    from scipy.sparse.linalg import aslinearoperator

    wrapped = aslinearoperator(operator)
    return _foreign(wrapped, (wrapped.shape[1],), (wrapped.shape[0],))


def from_pylops(operator: Any) -> Operator:
    """An operator of PyLops on the last axes of x, whose sizes are its ``dims``, on the CPU.

    Anything with ``shape``, ``matvec`` and ``rmatvec`` will do; without ``dims`` and ``dimsd`` it
    acts on vectors. Its adjoint is compared with it when it is made, as by :func:`from_scipy`.

    >>> class Twice:
    ...     shape = (6, 6)
    ...     dims = dimsd = (2, 3)
    ...     matvec = rmatvec = staticmethod(lambda x: 2 * x)
    >>> legato.operators.from_pylops(Twice())(torch.ones(2, 3))
    tensor([[2., 2., 2.],
            [2., 2., 2.]])
    """
    missing = [n for n in ("shape", "matvec", "rmatvec") if not hasattr(operator, n)]
    if missing:
        raise InputError(
            f"from_pylops needs an object with shape, matvec and rmatvec, but "
            f"{type(operator).__name__} has no {', '.join(missing)}."
        )
    before = tuple(getattr(operator, "dims", None) or (operator.shape[1],))
    after = tuple(getattr(operator, "dimsd", None) or (operator.shape[0],))
    return _foreign(operator, before, after)


def from_deepinv(physics: Any, shape: Shape, dtype: torch.dtype = torch.float32) -> Operator:
    r"""A linear physics of deepinv on images of a shape, batches before it.

    .. math:: Kx = \mathrm{physics.A}(x), \qquad K^*y = \mathrm{physics.A\_adjoint}(y)

    Anything with ``A`` and ``A_adjoint`` that take and make (B, …) will do. It is tried on random
    images when it is made: one that is not linear, mixes a batch, overwrites its argument, or whose
    adjoint or derivative is wrong, is refused. Noise is no part of it.

    Args:
        physics: such as ``deepinv.physics.Blur``, on the device where it is used.
        shape: of an image, (C, H, W).
        dtype: what it is tried with.

    >>> class Twice:
    ...     A = A_adjoint = staticmethod(lambda x: 2 * x)
    >>> legato.operators.from_deepinv(Twice(), (1, 2, 2))(torch.ones(3, 1, 2, 2)).shape
    torch.Size([3, 1, 2, 2])
    """
    missing = [n for n in ("A", "A_adjoint") if not hasattr(physics, n)]
    if missing:
        raise InputError(
            f"from_deepinv needs a linear physics, with A and A_adjoint, but "
            f"{type(physics).__name__} has no {', '.join(missing)}."
        )
    device = next((t.device for t in _tensors_of(physics)), torch.device("cpu"))
    shape = tuple(shape)
    with torch.no_grad():
        x, z = (_normal((2, *shape), seed, dtype, device) for seed in (0, 1))
        seen = _untouched(physics.A, x, "A")
        if not isinstance(seen, Tensor) or seen.ndim < 2 or seen.shape[0] != 2:
            raise InputError(
                f"A of {type(physics).__name__} makes no tensor (B, …) of images {tuple(x.shape)}."
            )
        made = _Physics(physics, shape, tuple(seen.shape[1:]))
        _require_linear(made, x, z)
        require_adjoint(made, x)
        _require_batches(made, x, "A")
        _require_batches(made.adjoint, seen, "A_adjoint")
    _require_derivative(made, made.adjoint, x, "A of the physics")
    _require_derivative(made.adjoint, made, seen, "A_adjoint of the physics")
    return made


def _require_batches(map_: Callable[[Tensor], Tensor], t: Tensor, name: str) -> None:
    """Refuse a map under which the elements of a batch depend on each other."""
    together, alone = map_(t), torch.cat([map_(row) for row in t.split(1)])
    off = _apart(together, alone)
    if not off <= 5000 * torch.finfo(t.dtype).eps:
        raise InputError(
            f"{name} of the physics mixes the elements of a batch: two images together and one by "
            f"one differ by {off:.1e} of their size. It has to take each image by itself."
        )


def _apart(one: Tensor, other: Tensor) -> float:
    """‖a − b‖ in units of the larger norm."""
    return float((one - other).norm() / (1e-30 + torch.maximum(one.norm(), other.norm())))


def _require_derivative(
    map_: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], t: Tensor, name: str
) -> None:
    """Refuse a map whose derivative, by autograd, is not the map: as if it were a constant."""
    with torch.enable_grad():
        point = t.detach().clone().requires_grad_()
        image = map_(point)
        y = _normal(tuple(image.shape), 3, image.dtype, image.device)
        found = None
        if image.requires_grad:
            (found,) = torch.autograd.grad(product(image, y).sum(), point, allow_unused=True)
    expected = back(y).detach()
    off = 1.0 if found is None else _apart(found, expected)
    # Others may compute in single precision, and with adjoints that are nearly so.
    if not off <= 1e-3:
        raise InputError(
            f"{name} has no derivative, or a wrong one: what autograd finds is "
            f"{off:.1e} of its size away from the adjoint map. Without one every gradient through "
            "a solution would be wrong. Leave out torch.no_grad, detach and NumPy, or give the "
            "operator as from_scipy(LinearOperator) with both maps."
        )


def _tensors_of(physics: Any) -> list[Tensor]:
    """What tells the device that a module is on."""
    if not isinstance(physics, torch.nn.Module):
        return []
    return [*physics.parameters(), *physics.buffers()]


def _foreign(operator: Any, before: Shape, after: Shape) -> Operator:
    kind = getattr(operator, "dtype", None) or np.float64
    complex_ = bool(np.issubdtype(kind, np.complexfloating))
    made = _Foreign(operator, before, after)
    kind = torch.complex128 if complex_ else torch.float64
    require_adjoint(made, _normal(before, 0, kind, "cpu"))
    return made


@torch.no_grad()
def require_adjoint(operator: Operator, x: Tensor) -> None:
    """Refuse an operator with ⟨Kx, y⟩ ≠ ⟨x, K*y⟩ at random vectors."""
    image = _untouched(operator, x, "The operator")
    y = _normal(tuple(image.shape), 2, image.dtype, x.device)
    back = _untouched(operator.adjoint, y, "The adjoint of the operator")
    if back.shape != x.shape:
        raise InputError(
            f"The adjoint of the operator makes shape {tuple(back.shape)} of what K makes of shape "
            f"{tuple(x.shape)}: it has to go back to that."
        )
    one, other = float(product(image, y).sum()), float(product(x, back).sum())
    size = max(float(image.norm() * y.norm()), float(x.norm() * back.norm()), 1e-30)
    # Others may compute in single precision, whatever they are given.
    if not abs(one - other) <= 1e-4 * size:
        raise InputError(
            f"The adjoint of the operator is wrong: ⟨Kx, y⟩ = {one:.6g} but ⟨x, K*y⟩ = "
            f"{other:.6g}, for random vectors {abs(one - other) / size:.1e} of their size apart. "
            "Look at its rmatvec: signs, factors, and what it does at the borders."
        )


def _normal(shape: Shape, seed: int, dtype: torch.dtype, device: Any) -> Tensor:
    chance = np.random.default_rng(seed)
    numbers = np.asarray(chance.standard_normal(shape))
    if dtype.is_complex:
        numbers = numbers + 1j * np.asarray(chance.standard_normal(shape))
    return torch.from_numpy(numbers).to(device, dtype)


@dataclass(frozen=True, eq=False, repr=False)
class _Traced(Operator):
    """A linear function of tensors of one shape."""

    forward: Callable[[Tensor], Tensor]
    shape: Shape
    complex_: bool = False
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"

    def start(self) -> Var:
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)

    def __call__(self, x: Var) -> Var:
        if x.is_complex() != self.complex_:
            kind = "complex" if self.complex_ else "real"
            raise InputError(
                f"This operator was made for {kind} numbers, but got {x.dtype}. Say so by dtype= "
                "in from_function."
            )
        if tuple(x.shape) != self.shape:
            raise InputError(
                f"This operator takes tensors of shape {self.shape}, but got {tuple(x.shape)}."
            )
        return self.forward(x)

    def adjoint(self, y: Var) -> Var:
        kind = y.dtype.to_complex() if self.complex_ else real_dtype(y.dtype)
        zeros = y.new_zeros(self.shape, dtype=kind)
        _, transposed, *_ = torch.func.vjp(self.forward, zeros)
        (found,) = transposed(y)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class _Foreign(Operator):
    """An operator that computes with NumPy arrays."""

    operator: Any
    before: Shape
    after: Shape

    @property
    def coupled(self) -> tuple[int, int]:
        return len(self.before), len(self.after)

    def __call__(self, x: Var) -> Var:
        self._require(x, self.before, "x")
        return _Outside.apply(x, self, False)  # type: ignore[no-untyped-call]

    def adjoint(self, y: Var) -> Var:
        self._require(y, self.after, "y")
        return _Outside.apply(y, self, True)  # type: ignore[no-untyped-call]

    def _require(self, t: Tensor, shape: Shape, name: str) -> None:
        if tuple(t.shape[max(0, t.ndim - len(shape)) :]) != shape:
            raise InputError(
                f"This operator needs {name} of shape {('…', *shape)}, but got {tuple(t.shape)}."
            )
        if t.device.type != "cpu":
            raise InputError(f"This operator computes on the CPU, but {name} is on {t.device}.")

    def apply(self, t: Tensor, adjoint: bool) -> Tensor:
        before, after = (self.after, self.before) if adjoint else (self.before, self.after)
        map_ = self.operator.rmatvec if adjoint else self.operator.matvec
        rows = t.detach().reshape(-1, int(np.prod(before))).numpy()
        images = [torch.from_numpy(np.asarray(map_(row)).reshape(after)) for row in rows]
        found = torch.stack(images).reshape(*t.shape[: t.ndim - len(before)], *after)
        own = real_dtype(t.dtype)
        return found.to(own.to_complex() if found.is_complex() else own)


@dataclass(frozen=True, eq=False, repr=False)
class _Physics(Operator):
    """A and A_adjoint of images with one batch axis."""

    physics: Any
    before: Shape
    after: Shape

    @property
    def coupled(self) -> tuple[int, int]:
        return len(self.before), len(self.after)

    def __call__(self, x: Var) -> Var:
        return self._batched(self.physics.A, x, self.before, "x")

    def adjoint(self, y: Var) -> Var:
        return self._batched(self.physics.A_adjoint, y, self.after, "y")

    @staticmethod
    def _batched(map_: Callable[[Tensor], Tensor], t: Tensor, shape: Shape, name: str) -> Tensor:
        axes = len(shape)
        if tuple(t.shape[max(0, t.ndim - axes) :]) != shape:
            raise InputError(
                f"This operator needs {name} of shape {('…', *shape)}, but got {tuple(t.shape)}."
            )
        batch = t.shape[: t.ndim - axes]
        found = map_(t.reshape(-1, *shape))
        return found.reshape(*batch, *found.shape[1:])


class _Outside(torch.autograd.Function):
    """Kx with derivative K and K*y with derivative K*, which autograd does not see inside."""

    @staticmethod
    def forward(t: Tensor, operator: _Foreign, adjoint: bool) -> Tensor:
        return operator.apply(t, adjoint)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.operator, ctx.adjoint = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        found = _Outside.apply(grad, ctx.operator, not ctx.adjoint)  # type: ignore[no-untyped-call]
        return found, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return _Outside.apply(tangent, ctx.operator, ctx.adjoint)  # type: ignore[no-untyped-call]
