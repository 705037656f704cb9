"""Rows between two ends, lower ≤ Gx ≤ upper, in the form that the solver reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from legato._support.checks import describe, inside_functional_transform, require_tensor
from legato._support.precision import out_of_autocast
from legato.errors import InputError
from legato.nn.programs.output import ProgramOutput
from legato.nn.programs.sparse_data import below, rows_of
from legato.operators import Sparse

EVEN = {torch.float32: 1e-6, torch.float64: 1e-10}
"""A multiplier below this, relative to the forces that it balances, is one of zero."""

Solve = Callable[[dict[str, Any], Tensor | None, ProgramOutput | None], ProgramOutput]
"""The solver of Ax = b, Gx ≤ h: data, which equations an instance does not have, a start."""


def solve_between(
    solve: Solve,
    given: dict[str, Any],
    ends: tuple[Tensor | float | None, Tensor | float | None],
    start: ProgramOutput | None,
    layer: str,
) -> ProgramOutput:
    """Solve with rows between two ends, where there are such; multipliers are those of the rows.

    Args:
        solve (Solve): the solver of the form with one end.
        given (dict): its data by name.
        ends (tuple): lower and upper, or None for both.
        start (ProgramOutput, optional): a solution of a similar program.
        layer (str): who speaks.
    """
    if ends[0] is None and ends[1] is None:
        return solve(given, None, start)
    rows, absent = _written(given, ends, layer)
    given = rows.given(given)
    record = solve(given, absent, None if start is None else rows.opened(start))
    rows.holding.append(rows.pulling(given, record))
    return rows.closed(record)


@dataclass(frozen=True)
class _Rows:
    """G's rows as those with an upper end, those with a lower one, and equations.

    Ends that are equal in some instances only are equations of zero in the others.
    """

    G: Tensor | Sparse
    lower: Tensor
    upper: Tensor
    above: Tensor
    below: Tensor
    equal: Tensor
    valid: Tensor
    """Which instance has which of the equations."""
    holding: list[Tensor]
    """The multipliers of the equations, once they are known."""

    def given(self, given: dict[str, Any]) -> dict[str, Any]:
        both = self.lower == self.upper
        G, out = self.G, dict(given)
        parts = [rows_of(G, self.above), rows_of(G, self.below, -1.0)]
        sides = [
            torch.where(both, torch.inf, self.upper)[..., self.above],
            torch.where(both, torch.inf, -self.lower)[..., self.below],
        ]
        out["G"] = _one_below_the_other(parts)
        out["h"] = torch.cat(_alike(sides, 1), -1)
        if self.equal.numel():
            # Expanded: which end holds x back differs from instance to instance.
            ends = [
                end[..., self.equal].expand(*batch_of(given, end), self.equal.numel())
                for end in (self.lower, self.upper)
            ]
            b = _Ends.apply(*ends, self.valid, self.holding)  # type: ignore[no-untyped-call]
            A: Any = rows_of(G, self.equal)
            if not bool(self.valid.all()):  # a batch, whose matrices are dense
                A = A * self.valid.unsqueeze(-1)
            if given.get("A") is not None and given.get("b") is not None:
                A = _one_below_the_other([given["A"], A])
                b = torch.cat(_alike([given["b"], b], 1), -1)
            out["A"], out["b"] = A, b
        return out

    def equations(self, y: Tensor) -> Tensor:
        return y[..., y.shape[-1] - self.equal.numel() :]

    def pulling(self, given: dict[str, Any], record: ProgramOutput) -> Tensor:
        """The multipliers of the equations, zero where they pull no more than rounding does."""
        y, x = self.equations(record.y).detach(), record.x.detach()
        if not y.shape[-1]:
            return y
        size = y.abs() * _lengths(self.G)[..., self.equal]
        forces = [size.amax(-1)]
        if isinstance(given.get("c"), Tensor):
            forces.append(given["c"].detach().to(y).abs().amax(-1))
        Q = given.get("Q")
        if isinstance(Q, Sparse):
            forces.append(Q(x).detach().abs().amax(-1))
        elif Q is not None:
            forces.append((Q.detach().to(y) @ x.unsqueeze(-1)).abs().amax((-2, -1)))
        force = torch.stack(torch.broadcast_tensors(*forces)).amax(0).unsqueeze(-1)
        return torch.where(size <= EVEN[y.dtype] * force, 0.0, y)

    def closed(self, record: ProgramOutput) -> ProgramOutput:
        """The record with one multiplier for each row, positive at its upper end."""
        k, a = self.equal.numel(), self.above.numel()
        z = record.z.new_zeros(*record.z.shape[:-1], self.G.shape[-2])
        z[..., self.above] += record.z[..., :a]
        z[..., self.below] -= record.z[..., a:]
        z[..., self.equal] += self.equations(record.y)
        return replace(record, y=record.y[..., : record.y.shape[-1] - k], z=z)

    def opened(self, start: ProgramOutput) -> ProgramOutput:
        if not isinstance(start, ProgramOutput):
            return start  # refused where a start is read
        if start.z.shape[-1] != self.G.shape[-2]:
            raise InputError(
                f"start has multipliers of {start.z.shape[-1]} rows of G, but this program has "
                f"{self.G.shape[-2]}: start from the record of a program of the same form."
            )
        z = torch.cat([start.z[..., self.above], -start.z[..., self.below]], -1).clamp(min=0)
        return replace(start, z=z)


def _lengths(G: Tensor | Sparse) -> Tensor:
    """The largest entry of each row."""
    if isinstance(G, Tensor):
        return G.detach().abs().amax(-1)
    values = G.values.detach().abs()
    return values.new_zeros(G.shape[0]).scatter_reduce(0, G.pattern.ends(False)[0], values, "amax")


def _written(
    given: dict[str, Any], ends: tuple[Tensor | float | None, Tensor | float | None], layer: str
) -> tuple[_Rows, Tensor | None]:
    """The rows in their kinds, and which equations an instance lacks; refuses what makes none."""
    if given["h"] is not None:
        raise InputError(
            "h and lower, upper are two forms of one constraint: give G with h for Gx ≤ h, or with "
            "lower and upper for lower ≤ Gx ≤ upper."
        )
    if given["G"] is None:
        raise InputError("lower and upper belong to the rows of G, which is missing.")
    if inside_functional_transform():
        raise InputError(
            f"{layer} decides by values, which torch.func hides. Give it the whole batch instead "
            "of vmap: leading axes are batches; and call .backward() or torch.autograd.grad."
        )
    G = out_of_autocast(given["G"])
    if not isinstance(G, Sparse):
        require_tensor(G, "G")
        if G.ndim < 2:
            raise InputError(f"G must be a matrix (…, rows, n), not of shape {describe(G)}.")
    m = G.shape[-2]
    lower, upper = (
        _end(end, name, fill, m, G.values if isinstance(G, Sparse) else G)
        for end, name, fill in zip(ends, ("lower", "upper"), (-torch.inf, torch.inf), strict=True)
    )
    try:
        lower, upper = torch.broadcast_tensors(lower, upper)
    except RuntimeError:
        raise InputError(
            f"lower {describe(lower)} and upper {describe(upper)} do not fit one another: leading "
            "axes must be equal, one, or absent for what all instances share."
        ) from None
    low, high = lower.detach(), upper.detach()
    if bool((low > high).any()):
        excess = low - high
        raise InputError(
            f"lower > upper in {int((excess > 0).sum())} entries, by up to "
            f"{float(excess.amax()):.2g}: no x satisfies that."
        )
    size = low.shape[:-1].numel()
    both = (low == high).reshape(size, m)
    equal, always = both.any(0), both.all(0)
    finite = [torch.isfinite(end).reshape(size, m).any(0) & ~always for end in (high, low)]
    at = [kind.nonzero().squeeze(-1) for kind in (*finite, equal)]
    valid = (low == high)[..., at[2]]
    rows = _Rows(G, lower, upper, at[0], at[1], at[2], valid, [])
    if bool(valid.all()):
        return rows, None
    own = 0 if given["A"] is None else given["A"].shape[-2]
    return rows, torch.cat([valid.new_zeros(*valid.shape[:-1], own), ~valid], -1)


def _end(end: Tensor | float | None, name: str, fill: float, m: int, G: Tensor) -> Tensor:
    """One end as a tensor (…, m) that is fit for it; ``G`` has the dtype and device."""
    if end is None or isinstance(end, int | float):
        number = fill if end is None else float(end)
        return _checked(torch.full((m,), number, dtype=G.dtype, device=G.device), name, fill, m, G)
    require_tensor(end, name)
    return _checked(out_of_autocast(end), name, fill, m, G)


def _checked(end: Tensor, name: str, fill: float, m: int, G: Tensor) -> Tensor:
    if end.dtype != G.dtype or end.device != G.device:
        raise InputError(
            f"G is {G.dtype} on {G.device} and {name} {end.dtype} on {end.device}: convert one of "
            "them."
        )
    if end.shape[-1:] != (m,):
        raise InputError(
            f"G has {m} rows, but {name} is of shape {describe(end)}: its last axis counts rows."
        )
    if bool(torch.isnan(end.detach()).any()):
        count = int(torch.isnan(end.detach()).sum())
        raise InputError(f"{name} holds {count} NaN of {end.numel()} values.")
    if bool((end.detach() == -fill).any()):
        raise InputError(f"{name} holds {'+∞' if fill < 0 else '−∞'}: no point satisfies that.")
    return end


def batch_of(given: dict[str, Any], end: Tensor | None = None) -> tuple[int, ...]:
    """The leading axes of the answer; those of the end where the data do not fit one another."""
    own = () if end is None else end.shape[:-1]
    leading = [
        v.shape[: -2 if name in ("Q", "A", "G") else -1]
        for name, v in given.items()
        if isinstance(v, Tensor)
    ]
    try:
        return tuple(torch.broadcast_shapes(*leading, own))
    except RuntimeError:
        return tuple(own)


def _one_below_the_other(parts: list[Any]) -> Any:
    if isinstance(parts[0], Sparse):
        return below(parts)
    return torch.cat(_alike(parts, 2), -2)


def _alike(parts: list[Tensor], tail: int) -> list[Tensor]:
    """Parts with the same leading axes, to be put together."""
    leading = torch.broadcast_shapes(*(p.shape[: p.ndim - tail] for p in parts))
    return [p.expand(*leading, *p.shape[p.ndim - tail :]) for p in parts]


class _Ends(torch.autograd.Function):
    """b of lower = b = upper; its gradient goes to the end that holds x back, halves to a tie."""

    @staticmethod
    def forward(
        ctx: Any, lower: Tensor, upper: Tensor, valid: Tensor, holding: list[Tensor]
    ) -> Tensor:
        ctx.valid, ctx.holding = valid, holding
        return torch.where(valid, upper, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = torch.where(ctx.valid, grad, 0.0)
        share = 0.5 * (1 + ctx.holding[0].sign())
        # An instance without a solution has multipliers that say nothing: NaN stays NaN.
        in_upper = torch.where(grad == 0, 0.0, grad * share)
        return grad - in_upper, in_upper, None, None
