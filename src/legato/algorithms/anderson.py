"""Anderson acceleration of any fixed-point iteration, with a safeguard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import require_whole
from legato._support.tree import Var
from legato.algorithms.backtracking import Backtracking
from legato.algorithms.base import Algorithm
from legato.errors import InputError

_BETTER = 0.999
"""The factor by which a combination has to fall below the least residual so far."""


class AndersonState(NamedTuple):
    """The state of the algorithm inside, and per element: what was seen, how much, how good.

    ``rest`` is the last ‖T(s) − s‖ that was seen, and ``bound`` what the next one may be.
    """

    inner: Any
    points: Tensor
    images: Tensor
    known: Tensor
    bound: Tensor
    rest: Tensor


@dataclass(frozen=True, eq=False)
class Anderson(Algorithm[Any, Any]):
    r"""Anderson acceleration of an algorithm's fixed-point map T: its last images, combined.

    .. math::
        s^{n+1} = \sum_j γ_j T(s^{n-j}), \qquad
        γ = \arg\min_{\sum γ_j = 1} \Bigl‖\sum_j γ_j \bigl(T(s^{n-j}) − s^{n-j}\bigr)\Bigr‖

    A combination s whose residual ‖T(s) − s‖ is not the least so far is taken back: the iteration
    goes on from the last accepted point by plain steps, with an empty memory. Each element of a
    batch has its own memory. Steps are those of the algorithm; its momentum and averages are not
    used. It stops by ‖T(s) − s‖, and by how far s moves.
    Defaults: ``memory=5``, ``regularisation=1e-10``.
    Reference: Walker and Ni (2011); Zhang, O'Donoghue, Boyd (2020) for safeguards.

    Args:
        algorithm: what is accelerated, in the Euclidean geometry, with steps that do not change.
        memory: how many images are combined at most.
        regularisation: relative to the squares of the residuals; keeps γ from exploding.

    >>> f = lg.Quadratic(torch.diag(torch.tensor([1.0, 0.01])), torch.tensor([0.0, -0.01]))
    >>> for algorithm in lg.ForwardBackward(inertia=0.0), lg.Anderson(lg.ForwardBackward()):
    ...     print(lg.solve(lg.Composite(f), algorithm, stop=lg.Stop(5000, tol=1e-6)).iterations)
    920
    3
    """

    algorithm: Algorithm[Any, Any]
    memory: int = 5
    regularisation: float = 1e-10

    def __post_init__(self) -> None:
        require_whole(self.memory, "The memory of Anderson")
        if not isinstance(self.algorithm, Algorithm):
            raise InputError(f"Anderson accelerates an algorithm, not {self.algorithm!r}.")
        if isinstance(getattr(self.algorithm, "step_size", None), Backtracking):
            raise InputError("Anderson needs steps that do not change: give a step, or None.")
        if not self.regularisation > 0:
            raise InputError("The regularisation of Anderson must be positive.")

    def init(self, problem: Any, x0: Var | None) -> AndersonState:
        return self._begin(problem, self.algorithm.init(problem, x0))

    def resume(self, problem: Any, state: AndersonState) -> AndersonState:
        return self._begin(problem, self.algorithm.resume(problem, state.inner))

    def proceed(self, problem: Any, state: AndersonState) -> AndersonState:
        return state._replace(inner=self.algorithm.proceed(problem, state.inner))

    def recomputed(self, problem: Any, state: AndersonState) -> AndersonState:
        return state._replace(inner=self.algorithm.recomputed(problem, state.inner))

    def _begin(self, problem: Any, inner: Any) -> AndersonState:
        if self.algorithm.coordinates(inner):
            raise InputError(
                "Anderson combines points, but in a curved geometry mirror coordinates may run to "
                "infinity. Use the Euclidean geometry."
            )
        _, reduced = self.algorithm.fixed_point_map(inner)
        rows = _rows(tree.detach(reduced), self._batch(problem, inner))
        empty = rows.new_zeros(self.memory, *rows.shape)
        known = rows.new_zeros(len(rows))
        unseen = torch.full_like(known, torch.inf)
        return AndersonState(inner, empty, empty, known, unseen, unseen)

    def _batch(self, problem: Any, inner: Any) -> int:
        count = getattr(problem, "batch", None)
        return 0 if count is None else count(self.algorithm.solution(inner))

    def step(self, problem: Any, state: AndersonState) -> AndersonState:
        batch = self._batch(problem, state.inner)
        plain, reduced = self.algorithm.fixed_point_map(state.inner)
        now = _rows(reduced, batch)
        image = _rows(plain.step(problem, reduced), batch)
        residual = (image - now).detach().norm(dim=-1)
        # A plain step is accepted even if its residual is larger: in the Euclidean norm that of
        # primal–dual steps may grow, and taking one back leads to where it is already. What is
        # combined has to be better by a share than all before: for ever only if it converges.
        good = ~(residual > state.bound) | (state.known <= 1)
        keep = good[:, None]
        points = torch.where(keep, _pushed(state.points, now), state.points)
        images = torch.where(keep, _pushed(state.images, image), state.images)
        known = torch.where(good, (state.known + 1).clamp(max=self.memory), 0.0)
        combined = self._combined(points, images, known)
        # What is taken back goes on from the last image that was accepted.
        new = torch.where(keep, combined, state.images[-1])
        bound = torch.where(good, torch.minimum(_BETTER * residual, state.bound), state.bound)
        moved = _unrolled(reduced, new)
        inner = self.algorithm.with_variables(state.inner, moved)
        return AndersonState(inner, points, images, known, bound, residual)

    def _combined(self, points: Tensor, images: Tensor, known: Tensor) -> Tensor:
        """T(s) − Σ γ_j ΔT_j for the γ that makes f − Σ γ_j Δf_j shortest; rows by rows."""
        if self.memory == 1:
            return images[-1]
        rests = images - points
        number = torch.arange(self.memory - 1, 0, -1).to(known)
        valid = (number[:, None] < known)[..., None]  # of the differences, the oldest first
        changes = torch.where(valid, rests.diff(dim=0), 0.0)
        moves = torch.where(valid, images.diff(dim=0), 0.0)
        gram = torch.einsum("jbn,kbn->bjk", changes, changes).double()
        right = torch.einsum("jbn,bn->bj", changes, rests[-1]).double()
        size = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
        eye = torch.eye(self.memory - 1, dtype=gram.dtype, device=gram.device)
        # An empty place in the memory has a one on the diagonal, and γ = 0.
        empty = torch.diag_embed(1 - valid[..., 0].mT.to(gram))
        size = torch.where(size > 0, size, 1.0)
        gamma = torch.linalg.solve(
            gram / size + self.regularisation * eye + empty, right / size[:, 0]
        )
        return images[-1] - torch.einsum("bj,jbn->bn", gamma.to(moves), moves)

    # --- reading a state --------------------------------------------------------------------------

    def solution(self, state: AndersonState) -> Var:
        return self.algorithm.solution(state.inner)

    def dual(self, state: AndersonState) -> Var | None:
        return self.algorithm.dual(state.inner)

    def points(self, state: AndersonState) -> Var:
        return self.algorithm.points(state.inner)

    def residual(
        self,
        before: AndersonState,
        after: AndersonState,
        batch: int = 0,
        largest: Tensor | None = None,
    ) -> Tensor:
        """The larger one of ‖T(s) − s‖ and the change of the points, relative to their size.

        A combination may end where it began, and taking one back may move little, far away from any
        solution.
        """
        moved = super().residual(before, after, batch, largest)
        with torch.no_grad():
            size = self.size(after, batch)
            size = size if largest is None else torch.maximum(size, largest)
            rest = after.rest if len(after.rest) == moved.numel() else after.rest.amax()
            return torch.maximum(
                moved, rest.reshape(moved.shape) / torch.where(size > 0, size, 1.0)
            )

    def at_rest(self, problem: Any, state: AndersonState) -> AndersonState:
        return state._replace(inner=self.algorithm.at_rest(problem, state.inner))

    def fixed_point_map(self, state: AndersonState) -> tuple[Algorithm[Any, Any], Any]:
        return self.algorithm.fixed_point_map(state.inner)

    def with_variables(self, state: AndersonState, reduced: Any) -> AndersonState:
        return state._replace(inner=self.algorithm.with_variables(state.inner, reduced))

    def steps(self, problem: Any, state: AndersonState) -> dict[str, Any]:
        return self.algorithm.steps(problem, state.inner)

    def remedy(self, problem: Any, state: AndersonState) -> str:
        return "try more memory, or the algorithm inside with other steps"

    def require_sound(self, state: AndersonState) -> None:
        self.algorithm.require_sound(state.inner)


def _rows(state: Any, batch: int) -> Tensor:
    """The variables as real rows, one for each element of a batch that all of them have."""
    parts = [tree.as_real(t) for t in tree.leaves(state)]
    shapes = {t.shape[:batch] for t in parts}
    count = next(iter(shapes)).numel() if len(shapes) == 1 else 1
    return torch.cat([t.reshape(count, -1) for t in parts], -1)


def _unrolled(like: Any, rows: Tensor) -> Any:
    """The inverse of :func:`_rows`."""
    targets = tree.leaves(like)
    parts = rows.split([tree.entries(t) // len(rows) for t in targets], -1)
    return tree.rebuild(like, [tree.shaped(t, p) for t, p in zip(targets, parts, strict=True)])


def _pushed(memory: Tensor, new: Tensor) -> Tensor:
    return torch.cat([memory[1:], new[None]])
