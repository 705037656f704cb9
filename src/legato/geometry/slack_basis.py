"""Linear algebra with Aᵀ diag(1/s) A for slacks s of any size, given by their logarithms."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DEPENDENT = 1e-9
"""Rows whose part outside the span of others is relatively smaller count as dependent on them."""


@dataclass(frozen=True)
class SlackBasis:
    r"""H = Aᵀ diag(1/s) A, written in the n independent rows whose slacks are the smallest.

    .. math:: A = C A_B, \quad J = \mathrm{diag}(1/s)\, C\, \mathrm{diag}(s_B), \quad
              H = A_B^⊤ \,(C^⊤ J)\, \mathrm{diag}(1/s_B)\, A_B

    A row depends on basis rows with smaller slacks only. So J_ij = C_ij exp(log s_j − log s_i) is
    bounded, and CᵀJ = I + … is bounded with its inverse, however small the slacks: 1/s is never
    formed. Reference: Stewart (1989) and Todd (1990) for the bound.
    """

    rows: Tensor  # A_B
    coordinates: Tensor  # C
    ratios: Tensor  # J
    log_slack: Tensor
    index: Tensor

    @classmethod
    def of(cls, A: Tensor, log_slack: Tensor) -> SlackBasis:
        """The basis for each vector of log-slacks of shape (…, m); differentiable in both."""
        index = _smallest_independent(A.detach(), log_slack.detach())
        rows = A[index]
        every = A.expand(*index.shape[:-1], *A.shape)
        coordinates = _cleaned(torch.linalg.solve(rows, every, left=False), index)
        steps = log_slack.gather(-1, index).unsqueeze(-2) - log_slack.unsqueeze(-1)
        steps = torch.where(coordinates == 0, torch.zeros_like(steps), steps)
        return cls(rows, coordinates, coordinates * torch.exp(steps), log_slack, index)

    @property
    def log_basis_slack(self) -> Tensor:
        return self.log_slack.gather(-1, self.index)

    @property
    def core(self) -> Tensor:
        """CᵀJ, the identity plus what the rows outside the basis add."""
        return self.coordinates.mT @ self.ratios

    def solve(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """w = H⁻¹g, and diag(1/s) A w."""
        q = solve_vector(self.core, solve_vector(self.rows.mT, g))
        w = solve_vector(self.rows, torch.exp(self.log_basis_slack) * q)
        return w, times_vector(self.ratios, q)

    def carry(self, change: Tensor) -> Tensor:
        """v with Hv = Aᵀ diag(1/s) c for changes c of the slacks: the s-weighted least squares."""
        return solve_vector(
            self.rows, solve_vector(self.core.mT, times_vector(self.ratios.mT, change))
        )


def _smallest_independent(A: Tensor, log_slack: Tensor) -> Tensor:
    """Indices of n rows, by Gram–Schmidt with pivots ‖rest of the row‖/√s, in logarithms."""
    lengths = torch.linalg.vector_norm(A, dim=-1)
    rest = A.expand(*log_slack.shape, A.shape[-1])
    found = []
    for _ in range(A.shape[-1]):
        norms = torch.linalg.vector_norm(rest, dim=-1)
        size = torch.log(norms) - 0.5 * log_slack
        size = torch.where(norms > DEPENDENT * lengths, size, torch.full_like(size, -torch.inf))
        best = size.argmax(-1, keepdim=True)
        found.append(best)
        pivot = rest.gather(-2, best.unsqueeze(-1).expand(*best.shape, A.shape[-1]))
        pivot = pivot / torch.linalg.vector_norm(pivot, dim=-1, keepdim=True)
        for _ in range(2):  # the second time removes what rounding left
            rest = rest - (rest @ pivot.mT) * pivot
    return torch.cat(found, -1)


def _cleaned(C: Tensor, index: Tensor) -> Tensor:
    """C with an exact identity in the rows of the basis and exact zeros where rounding left none.

    A coordinate that is rounding would count fully beside a slack that is smaller still.
    """
    small = C.detach().abs() <= DEPENDENT * C.detach().abs().amax(-1, keepdim=True)
    C = torch.where(small, torch.zeros_like(C), C)
    n = C.shape[-1]
    at = index.unsqueeze(-1).expand(*index.shape, n)
    return C.scatter(-2, at, torch.eye(n, dtype=C.dtype, device=C.device).expand(at.shape))


def solve_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.linalg.solve(matrix, vector.unsqueeze(-1)).squeeze(-1)


def times_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
