"""What a solve has to say: where there is no solution, and where there is no derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from legato._support.telling import tell
from legato.errors import InexactGradientWarning, NotConvergedWarning
from legato.nn.programs.output import ProgramOutput
from legato.nn.programs.solver import ProgramStatus

_SHOWN = 5


def _where(flags: Tensor) -> str:
    """How many instances, and the first of them."""
    if flags.ndim == 0:
        return "The program"
    places = flags.nonzero().tolist()
    first = ", ".join(str(p[0] if len(p) == 1 else tuple(p)) for p in places[:_SHOWN])
    more = ", …" if len(places) > _SHOWN else ""
    return f"{len(places)} of {flags.numel()} programs (instances {first}{more})"


def _largest(values: Tensor, flags: Tensor) -> str:
    return f"{float(values[flags].amax()):.1e}"


def tell_unsolved(record: ProgramOutput, layer: str) -> None:
    """Infeasible, unbounded, or not arrived: each with its instances and numbers."""
    status = record.status
    if not bool((status != int(ProgramStatus.SOLVED)).any()):
        return
    infeasible = status == int(ProgramStatus.INFEASIBLE)
    if bool(infeasible.any()):
        tell(
            f"{layer}: {_where(infeasible)}: no x satisfies the constraints, and x is NaN there. "
            "The record's y, z, z_lo, z_hi prove it: a combination of the constraints that reads "
            "0 ≤ a negative number.",
            NotConvergedWarning,
        )
    unbounded = status == int(ProgramStatus.UNBOUNDED)
    if bool(unbounded.any()):
        tell(
            f"{layer}: {_where(unbounded)}: the objective falls without end along the record's "
            "ray, and x is NaN there. Add bounds, or curvature to Q.",
            NotConvergedWarning,
        )
    limit = status == int(ProgramStatus.LIMIT)
    if bool(limit.any()):
        tell(
            f"{layer}: {_where(limit)} did not arrive within {int(record.iterations.amax())} "
            f"iterations; residuals up to {_largest(record.primal, limit)} (primal), "
            f"{_largest(record.dual, limit)} (dual), {_largest(record.gap, limit)} (gap). x is the "
            "nearest point found. Scale the data, or allow more iterations or a looser tol.",
            NotConvergedWarning,
        )


def tell_degenerate(record: ProgramOutput, layer: str, constraints: bool) -> None:
    """Ties, solutions that are not unique, dependent constraints where they are differentiated."""
    solved = record.solved
    tied, loose = record.tied & solved, record.loose & solved
    dependent = record.dependent & solved & ~tied & ~loose
    flags = torch.stack([tied.any(), loose.any(), dependent.any()]).tolist()
    if flags[0]:
        tell(
            f"{layer}: {_where(tied)}: an inequality is active with a multiplier of zero (margin "
            f"{float(record.margin[tied].amin()):.1e}). x has a kink there; the gradient is that "
            "of one side.",
            InexactGradientWarning,
        )
    if flags[1]:
        tell(
            f"{layer}: {_where(loose)}: x is not unique, so it has no derivative; the gradient is "
            "that of one choice. A small multiple of the identity in Q makes x unique.",
            InexactGradientWarning,
        )
    if flags[2] and constraints:
        tell(
            f"{layer}: {_where(dependent)}: active constraints depend on one another, so that x "
            "has no derivative in each of them alone; the gradient is that of one choice of "
            "multipliers. Leave out the constraints that others imply.",
            InexactGradientWarning,
        )


def tell_choice(record: ProgramOutput, many: Tensor, layer: str, constraints: bool) -> None:
    """Of a difference of two solves: where the first one chose its solution or multipliers."""
    if bool(many.any()):
        tell(
            f"{layer}: {_where(many)}: x is not unique, and the difference that LPGD takes is from "
            "one choice. Break ties of the cost, or use Entropic(…).",
            InexactGradientWarning,
        )
    dependent = (record.dependent | record.tied) & record.solved & ~many
    if constraints and bool(dependent.any()):
        tell(
            f"{layer}: {_where(dependent)}: active constraints depend on one another, so that "
            "their multipliers are not unique, and the difference that LPGD takes is from one "
            "choice. Leave out the constraints that others imply.",
            InexactGradientWarning,
        )


def tell_empty(flags: Tensor, layer: str) -> None:
    """Rows 0 ≤ 0, where G is differentiated: any move of such a row cuts x off, or nothing."""
    if bool(flags.any()):
        tell(
            f"{layer}: {_where(flags)}: a row of G is zero, and so is its h. It holds for every x, "
            "but not when G moves: x has no derivative in such a row, and its gradient is zero. "
            "If it is padding, give it h = +∞.",
            InexactGradientWarning,
        )
