"""Orthonormal bases of Krylov spaces, column by column, or many columns at a time by an engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato.algorithms import Algorithm
from legato.engine import Engine
from legato.engine.stepping import Stepping
from legato.engine.switch import loop, recorded_step, uncompiled
from legato.gradients.linear.base import Product, norm

AT_ONCE = 10
"""Columns that an engine computes before the host reads them."""


class Krylov:
    r"""The Arnoldi process for each row of a start r.

    .. math:: C v_k = \sum_{j ≤ k+1} h_{jk} v_j, \qquad v_1 = r/‖r‖

    :meth:`columns` gives (h_{1k}, …, h_{k+1,k}) of all rows, float64 on the host; ``basis``
    holds v_1, …, v_k and more. What is shorter than ``shortest`` of Cv counts as nothing: the space
    is exhausted, and that row goes on with zeros.
    Reference: Saad (2003), Section 6.3.

    Args:
        product: v ↦ Cv on rows.
        like: a matrix of the shape of r.
        size: the largest number of columns.
        shortest: relative to ‖Cv‖.
        engine: what runs it; None for step by step.
    """

    def __init__(
        self, product: Product, like: Tensor, size: int, shortest: float, engine: Engine | None
    ) -> None:
        self.product, self.size, self.shortest = product, size, shortest
        self.engine = uncompiled(engine)
        self.basis = like.new_zeros(size + 1, *like.shape)
        self._step: Stepping | None = None
        """Recorded once: the product does not change while a system is solved."""

    def columns(self, start: Tensor) -> Iterator[Tensor]:
        """The columns of H, one after another, for a start r."""
        self.basis = torch.zeros_like(self.basis)
        self.basis[0] = unit(start, norm(start))
        arnoldi = _Arnoldi(self.shortest)
        if self.engine is not None and self.size > 1:
            state = arnoldi.init(self, None)
            if self._step is None:
                self._step = recorded_step(self.engine, self, arnoldi, state)
        step = self._step
        if step is None or self.engine is None:
            yield from self._one_by_one()
            return
        for first in range(0, self.size, AT_ONCE):
            count = min(AT_ONCE, self.size - first)
            _, state = loop(self.engine, step, state, count)
            self.basis = state.basis
            columns = state.columns[:, :, first : first + count].double().cpu()  # waits for a GPU
            for k in range(count):
                yield columns[:, : first + k + 2, k]

    def _one_by_one(self) -> Iterator[Tensor]:
        for k in range(self.size):
            image = self.product(self.basis[k])
            v, parts = orthogonalised(image, self.basis[: k + 1])
            length = _or_nothing(norm(v), norm(image), self.shortest)
            self.basis[k + 1] = unit(v, length)
            yield torch.cat([parts, length], -1).double().cpu()  # waits for a GPU


class _Space(NamedTuple):
    basis: Tensor
    columns: Tensor
    number: Tensor


class _Arnoldi(Algorithm[Krylov, _Space]):
    """One column as a map that is the same for all of them: entries of the basis not yet known are
    zero."""

    def __init__(self, shortest: float) -> None:
        self.shortest = shortest

    def init(self, problem: Krylov, x0: Any) -> _Space:
        rows = problem.basis.shape[1]
        columns = problem.basis.new_zeros(rows, problem.size + 1, problem.size)
        return _Space(problem.basis, columns, torch.zeros(1, dtype=torch.int64).to(columns.device))

    def step(self, problem: Krylov, state: _Space) -> _Space:
        basis, columns, k = state
        image = problem.product(basis.index_select(0, k)[0])
        v, parts = orthogonalised(image, basis)
        length = _or_nothing(norm(v), norm(image), self.shortest)
        column = parts.index_copy(1, k + 1, length)
        return _Space(
            basis.index_copy(0, k + 1, unit(v, length)[None]),
            columns.index_copy(2, k, column[:, :, None]),
            k + 1,
        )

    def solution(self, state: _Space) -> Tensor:
        return state.basis


def orthogonalised(v: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """v without its parts along an orthonormal basis (k, rows, n), and these: (rows, k).

    Gram–Schmidt loses orthogonality to cancellation; a second pass restores it to working precision
    ("twice is enough", Kahan).
    """
    total: Tensor | None = None
    for _ in range(2):
        parts = torch.einsum("kbn,bn->bk", basis, v)
        v = v - torch.einsum("bk,kbn->bn", parts, basis)
        total = parts if total is None else total + parts
    assert total is not None
    return v, total


def unit(v: Tensor, length: Tensor) -> Tensor:
    """v/length, and 0 where there is nothing."""
    return torch.where(length > 0, v / torch.where(length > 0, length, 1.0), 0.0)


def _or_nothing(length: Tensor, whole: Tensor, shortest: float) -> Tensor:
    return torch.where(length > shortest * whole, length, 0.0)
