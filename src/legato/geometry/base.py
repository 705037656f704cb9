"""The contract of a geometry: a Legendre function and its two gradient maps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import holds, is_concrete, wide_norm
from legato._support.compiling import UnrecordableError, is_being_recorded
from legato._support.holding import Holder
from legato._support.tree import Var, inner, sum_beyond, tree_map
from legato.errors import DomainError, GradientError


class Geometry(Holder, ABC):
    r"""A Legendre function ψ, seen through the four maps that Bregman algorithms need.

    .. math:: D_ψ(x, z) = ψ(x) − ψ(z) − ⟨∇ψ(z), x − z⟩

    Points carry *mirror coordinates* y = ∇ψ(x); algorithms live there because mirror coordinates
    stay finite and informative where x itself rounds to the boundary.
    Reference: Bregman (1967); Bauschke, Bolte, Teboulle (2017).

    >>> psi = lg.Interval(0.0, 1.0)
    >>> y = psi.mirror(torch.tensor([0.25]))
    >>> psi.unmirror(y)
    tensor([0.2500])
    >>> psi.interior(torch.tensor([0.5, 1.0]))
    tensor([ True, False])
    """

    takes_complex: ClassVar[bool] = False
    """Whether ψ is one of complex numbers, too."""

    def summands(self, x: Var) -> Tensor:
        """Terms that add up to ψ(x); their leading axes are those of x."""
        raise NotImplementedError(f"{type(self).__name__} defines neither summands nor value.")

    def value(self, x: Var) -> Tensor:
        """ψ(x), summed over all entries."""
        return self.summands(x).sum()

    def values(self, x: Var, batch: int) -> Tensor:
        """ψ(x) for each element of a batch: the first ``batch`` axes of x stay."""
        return sum_beyond(self.summands(x), batch) if batch else self.value(x)

    @property
    def coupled(self) -> int | None:
        """How many trailing axes of x belong together in ψ; None: all."""
        return None

    def modulus(self, bounds: tuple[Any, Any]) -> Tensor | float | None:
        r"""How strongly convex ψ is on lo ≤ x ≤ hi; None where that is unknown.

        .. math:: D_ψ(x, z) ≥ \tfrac m2 ‖x − z‖²

        Steps are derived from it. Reference: Example 3 of Ochs et al. (2016), with errata 9.
        """
        return None

    @abstractmethod
    def mirror(self, x: Var) -> Var:
        """∇ψ(x)."""

    @abstractmethod
    def unmirror(self, y: Var) -> Var:
        """∇ψ*(y), the inverse of :meth:`mirror`; finite for every finite y."""

    @abstractmethod
    def interior(self, x: Var) -> Tensor:
        """Entrywise: is x strictly inside the domain?"""

    def distance(self, x: Var, z: Var) -> Tensor:
        """D_ψ(x, z), summed over all entries."""
        return self.distances(x, z, 0)

    def distances(self, x: Var, z: Var, batch: int) -> Tensor:
        """D_ψ(x, z) for each element of a batch: the first ``batch`` axes of x stay."""
        slope = inner(self.mirror(z), tree_map(torch.sub, x, z), batch)
        return self.values(x, batch) - self.values(z, batch) - slope

    def mirror_interior(self, y: Var) -> Tensor:
        """Entrywise: is y in the range of ∇ψ? For most geometries that is the whole space."""
        return torch.isfinite(y)

    def centre(self, like: Var) -> Var:
        """A neutral starting point shaped like ``like``, in mirror coordinates."""
        return torch.zeros_like(like)

    def metric(self, y: Var, v: Var) -> Var:
        """∇²ψ*(y) v: how a small change v of the mirror coordinates moves the point."""
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            (out,) = torch.autograd.grad(self.unmirror(y), y, v)
        return out

    def inverse_metric(self, y: Var, v: Var) -> Var:
        """∇²ψ(∇ψ*(y)) v, with 0 where the point has reached the boundary numerically.

        That is right entry by entry. Where ψ couples entries, one entry at the boundary may spoil
        the others: the result is then checked by the way back, and refused if it is wrong.
        """
        with torch.enable_grad():
            x = self.unmirror(y.detach()).detach().requires_grad_()
            (out,) = torch.autograd.grad(self.mirror(x), x, v)
        unknown = ~torch.isfinite(v)  # comes out as it went in
        if self.coupled != 0:
            unknown = unknown.any(self._coupled_axes(v), keepdim=True)
        out = torch.where(torch.isfinite(out) | unknown, out, torch.zeros_like(out))
        if self.coupled != 0 and is_being_recorded():
            raise UnrecordableError(f"derivatives in {self!r} are checked by their values")
        if self.coupled != 0 and is_concrete():
            self._require_way_back(y, v, out)
        return out

    def _coupled_axes(self, v: Tensor) -> tuple[int, ...]:
        return tuple(range(-(v.ndim if self.coupled is None else self.coupled), 0))

    def _require_way_back(self, y: Tensor, v: Tensor, out: Tensor) -> None:
        """Refuse out = ∇²ψ v unless ∇²ψ* out = v."""
        axes = self._coupled_axes(v)
        lost, size = (wide_norm(t, axes) for t in (self.metric(y, out) - v, v))
        if bool((lost > torch.finfo(v.dtype).eps ** (1 / 3) * size).any()):
            raise GradientError(
                f"A point of {self!r} is so close to the boundary that ∇²ψ has lost its digits in "
                f"{v.dtype}, and the gradient with them (relative error "
                f"{float((lost / size).nan_to_num(0.0).max()):.1e}). Override transport() and "
                "inverse_metric() with formulas in mirror coordinates, declare coupled = 0 if ψ is "
                "a sum over the entries, or use Unroll()."
            )

    def transport(self, before: Var, after: Var, w: Var) -> Var:
        r"""Carry a mirror cotangent from ``before`` to ``after``.

        .. math:: ∇²ψ^*(y_{after})\,∇²ψ(x_{before})\,w

        This ratio is what makes the fixed-point family exact at boundary solutions, where mirror
        coordinates drift to infinity while the point stands still. Geometries with a boundary
        override it with a formula in mirror coordinates, which cannot underflow.
        """
        return self.metric(after, self.inverse_metric(before, w))

    def attach_drift(self, before: Var, after: Var) -> Var:
        r"""``after``, one step from ``before`` at a solution, with the derivative of the drift.

        Where a solution is at the boundary, mirror coordinates drift on. If ψ couples entries and
        has parameters θ, the point that belongs to fixed mirror coordinates moves with θ as they
        do, and the fixed-point family needs the difference

        .. math:: ∇²ψ(x_{after})\,\bigl(∂_θ∇ψ^*(y_{after}) − ∂_θ∇ψ^*(y_{before})\bigr)

        It vanishes inside the domain, and entry by entry where ψ does not couple them.
        """
        if self.coupled == 0:
            return after
        ends = self.unmirror(after.detach()), self.unmirror(before.detach())
        if not any(end.requires_grad for end in ends):
            return after
        moved = _Curved.apply(ends[0] - ends[1], self, after.detach())  # type: ignore[no-untyped-call]
        return after + moved

    def require_interior(self, x: Tensor, name: str = "x0") -> None:
        """Raise a :class:`~legato.errors.DomainError` unless x is strictly inside the domain."""
        inside = self.interior(x)
        if not holds(inside):
            outside = ~inside
            index = tuple(int(i) for i in outside.nonzero()[0])
            where = f", first at {index}" if inside.shape == x.shape else ""
            example = f" with value {float(x[index]):g}" if inside.shape == x.shape else ""
            raise DomainError(
                f"{name} must lie strictly inside the domain of {self!r}, but {int(outside.sum())} "
                f"of {inside.numel()} entries do not{where}{example}. "
                f"{self._advice()} Or leave x0=None for a neutral start."
            )

    def _advice(self) -> str:
        return "Choose a start inside."


class _Curved(torch.autograd.Function):
    """Zeros with the derivative of ∇²ψ(∇ψ*(y)) x in x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, geometry: Geometry, y: Tensor) -> Tensor:
        ctx.geometry, ctx.y = geometry, y
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.geometry.inverse_metric(ctx.y, grad), None, None


def bounded_exp(t: Tensor) -> Tensor:
    """exp(t), saturating at the largest finite number instead of overflowing."""
    return torch.exp(torch.clamp(t, max=exp_limit(t.dtype)))


def exp_limit(dtype: torch.dtype) -> float:
    """From where on exp(t) is no number any more."""
    return 88.0 if dtype == torch.float32 else 709.0


def largest_bound(bounds: tuple[Any, Any]) -> Tensor | float | None:
    """The largest upper end, attached where it is learned, None where it is infinite."""
    hi = bounds[1]
    top = float(hi.detach().amax()) if isinstance(hi, Tensor) else float(hi)
    if not 0 < top < float("inf"):
        return None
    return hi.amax() if isinstance(hi, Tensor) and hi.requires_grad else top
