"""The entropy of the slacks of a polyhedron."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.checks import inside_functional_transform, require_finite, require_tensor
from legato._support.tree import Var, sum_beyond
from legato.errors import GradientError, InputError
from legato.geometry.base import Geometry, bounded_exp, exp_limit
from legato.geometry.slack_basis import DEPENDENT, SlackBasis
from legato.geometry.slack_newton import LARGEST, invert_mirror, rounding


@dataclass(frozen=True, repr=False, eq=False)
class Polyhedral(Geometry):
    r"""Entropy of the slacks of {x : Ax ≤ b}, a set with interior whose A has full column rank.

    .. math:: ψ(x) = \sum_i s_i \log s_i, \quad s = b − Ax, \quad ∇ψ(x) = −A^⊤(1 + \log s)

    ∇ψ* has no closed form: a damped Newton method computes it and the implicit function theorem
    differentiates it, in y, A and b. ``start`` is any interior point (found for you if the origin
    is one). Reference: Example 4 of Ochs et al. (2016).

    >>> A = torch.tensor([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]).double()
    >>> psi = lg.Polyhedral(A, torch.ones(3).double())  # x₁ + x₂ ≤ 1, x ≥ −1
    >>> x = torch.tensor([0.2, -0.3]).double()
    >>> torch.allclose(psi.unmirror(psi.mirror(x)), x)
    True
    """

    A: Tensor
    b: Tensor
    start: Tensor | None = None

    def __post_init__(self) -> None:
        require_tensor(self.A, "A of Polyhedral")
        require_tensor(self.b, "b of Polyhedral")
        if self.A.ndim != 2 or self.b.shape != self.A.shape[:1]:
            raise InputError(
                f"Polyhedral needs A of shape (m, n) and b of shape (m,), "
                f"not {tuple(self.A.shape)} and {tuple(self.b.shape)}."
            )
        require_finite(self.A, "A of Polyhedral")
        require_finite(self.b, "b of Polyhedral")
        self._require_rank()
        inside = self._start()
        if not bool((self.slack(inside.detach()) > 0).all()):
            raise InputError(
                "Polyhedral needs a point strictly inside {Ax ≤ b} to start Newton's method from: "
                f"{'the origin' if self.start is None else 'the given start'} is not. "
                "Pass start=…, e.g. the Chebyshev centre."
            )

    def _require_rank(self) -> None:
        lengths = torch.linalg.vector_norm(self.A.detach().double(), dim=-1, keepdim=True)
        rows = self.A.detach().double() / torch.where(lengths > 0, lengths, 1.0)
        rank = int(torch.linalg.matrix_rank(rows, rtol=DEPENDENT))
        if rank < self.A.shape[1]:
            raise InputError(
                f"Polyhedral needs an A of full column rank, but its {self.A.shape[1]} columns "
                f"have rank {rank}: {{Ax ≤ b}} holds a whole line, along which ψ is constant. "
                "Bound x in every direction, e.g. by rows for lo ≤ x ≤ hi."
            )

    def _start(self) -> Tensor:
        return self.A.new_zeros(self.A.shape[1]) if self.start is None else self.start

    def slack(self, x: Tensor) -> Tensor:
        """b − Ax in the precision of x."""
        return self.b.to(x.dtype) - x @ self.A.to(x.dtype).mT

    def summands(self, x: Var) -> Tensor:
        s = self.slack(x)
        return torch.xlogy(s, s)

    @property
    def coupled(self) -> int:
        return 1

    def modulus(self, bounds: tuple[Any, Any]) -> float | None:
        """λ_min(Aᵀ diag(1/ŝ) A) with the largest slacks ŝ of a bounded set; None if unbounded.

        ŝᵢ is attained, up to 1/K, at ∇ψ*(−K aᵢ).
        """
        A, K = self.A.detach().double(), 1e6
        lengths = torch.linalg.vector_norm(A, dim=-1, keepdim=True)
        log_widest = self.log_slack(-K * A / torch.where(lengths > 0, lengths, 1.0)).diagonal()
        if bool((log_widest > 0.1 * exp_limit(torch.float64)).any()):
            return None
        widest = torch.exp(log_widest)
        widest = widest + (widest * (1 + log_widest.abs())).sum() * lengths[:, 0] / K
        return float(torch.linalg.eigvalsh((A.mT / widest) @ A)[0])

    def mirror(self, x: Var) -> Var:
        return -(1 + torch.log(self.slack(x))) @ self.A.to(x.dtype)

    def unmirror(self, y: Var) -> Var:
        if inside_functional_transform():
            raise GradientError(f"{_BY_NEWTON} cannot be used inside torch.func transforms. {_TRY}")
        start = self._start().detach()
        return _InverseMirror.apply(y, self.A, self.b, start)  # type: ignore[no-untyped-call]

    def log_slack(self, y: Tensor) -> Tensor:
        """log s of the point ∇ψ*(y) in double precision, also where s rounds to 0."""
        data = self.A.detach().double(), self.b.detach().double(), self._start().detach().double()
        return invert_mirror(y.detach().double(), *data)[1]

    def interior(self, x: Var) -> Tensor:
        return (self.slack(x) > 0).all(-1)

    def mirror_interior(self, y: Var) -> Tensor:
        # Beyond, a slack of an unbounded set is no number any more, and unmirror saturates.
        inside = (self.log_slack(y) <= exp_limit(y.dtype)).all(-1, keepdim=True)
        return inside & (y.abs() <= LARGEST)

    def distances(self, x: Var, z: Var, batch: int) -> Tensor:
        s, r = (
            torch.maximum(t, rounding(self.b.to(t.dtype))) for t in (self.slack(x), self.slack(z))
        )
        return sum_beyond(torch.xlogy(s, s / r) - s + r, batch)

    def inverse_metric(self, y: Var, v: Var) -> Var:
        log_slack = self.log_slack(y)
        weight = torch.exp(-log_slack)
        resting = log_slack < torch.log(rounding(self.b.detach().to(y.dtype)).double())
        weight = torch.where(resting, torch.zeros_like(weight), weight)
        A = self.A.detach().double()
        return ((weight * (v.double() @ A.mT)) @ A).to(v.dtype)

    def transport(self, before: Var, after: Var, w: Var) -> Var:
        """The weighted least squares min_v Σ (⟨aᵢ, v⟩ − (s⁺ᵢ/sᵢ)⟨aᵢ, w⟩)²/s⁺ᵢ."""
        A = self.A.detach().double()
        old, new = self.log_slack(torch.stack([before, after]))
        carried = SlackBasis.of(A, new).carry(bounded_exp(new - old) * (w.double() @ A.mT))
        return carried.to(w.dtype)

    def attach_drift(self, before: Var, after: Var) -> Var:
        """y⁺ − y = −Aᵀ log(s⁺/s): the multipliers log(s/s⁺) of the active rows stay, A moves."""
        if not self.A.requires_grad:
            return after
        old, new = self.log_slack(torch.stack([before, after]))
        multipliers = (old - new).to(after.dtype)
        return after - multipliers @ (self.A - self.A.detach()).to(after.dtype)

    def _advice(self) -> str:
        return "Polyhedral needs Ax < b."


_BY_NEWTON = "Polyhedral inverts its mirror map by Newton's method, and"
_TRY = "Use .backward(), or the constraint as a term, e.g. Box or Simplex."


class _InverseMirror(torch.autograd.Function):
    """x = ∇ψ*(y) by Newton; dx = H⁻¹(dy − ∂∇ψ·d(A, b)) with H = Aᵀ diag(1/s) A."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, A: Tensor, b: Tensor, start: Tensor) -> Tensor:
        found, log_slack = invert_mirror(y.double(), A.double(), b.double(), start.double())
        x = _saturated(found, y.dtype)
        ctx.save_for_backward(x, A, b)
        ctx.log_slack = log_slack
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        saved = ctx.saved_tensors
        x, A, b = (t.double() for t in saved)
        slack = b - x @ A.mT
        # The exact value, with the derivative of log(b − Ax) as far as x can express it.
        log_slack = ctx.log_slack
        reach = torch.maximum(torch.exp(log_slack), rounding(b.detach()))
        log_slack = log_slack + (slack - slack.detach()) / reach
        w, pull = SlackBasis.of(A, log_slack).solve(grad.double())
        outer = (1 + log_slack).unsqueeze(-1) * w.unsqueeze(-2)
        grad_A = outer - pull.unsqueeze(-1) * x.unsqueeze(-2)
        grads = w, grad_A.reshape(-1, *A.shape).sum(0), pull.reshape(-1, *b.shape).sum(0)
        return *(g.to(t) for g, t in zip(grads, (grad, *saved[1:]), strict=True)), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise GradientError(f"{_BY_NEWTON} has no forward-mode derivative. {_TRY}")


def _saturated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in another precision, at its largest finite number instead of infinity."""
    largest = torch.finfo(dtype).max
    return torch.clamp(x, -largest, largest).to(dtype)
