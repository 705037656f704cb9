"""Newton's method, for energies with second derivatives and for those with a prox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from legato._support import tree
from legato._support.tree import Var
from legato.algorithms.balance import AdaptiveBalance
from legato.algorithms.base import Algorithm, is_euclidean
from legato.algorithms.forward_backward import ForwardBackward, MirrorState
from legato.algorithms.primal_dual import PrimalDual
from legato.algorithms.saddle.states import MirrorPair
from legato.algorithms.semismooth.iteration import (
    NewtonMap,
    Points,
    Semismooth,
    SemismoothState,
)
from legato.algorithms.smooth_newton import NewtonState, SmoothNewton, is_smooth
from legato.algorithms.start import require_real_variable
from legato.errors import DivergenceError, InputError
from legato.problems import Composite, Saddle


@dataclass(frozen=True, eq=False)
class Newton(Algorithm[Any, Any]):
    r"""Newton's method: on ∇E where all terms are smooth, else on the residual of a splitting.

    .. math:: x^{n+1} = x^n − t\, H^{-1} ∇E(x^n) \qquad\text{or}\qquad
              z^{n+1} = z^n − (I − J)^{-1}(z^n − T(z^n)), \quad J ∈ ∂T(z^n)

    For a smooth E = f + g, H = ∇²E is factorised again only where ⟨∇E, H⁻¹∇E⟩^½ has not shrunk to
    ``reuse`` times its last value, and a line search finds t, the same for a whole batch. Else T is
    one step of forward–backward or primal–dual splitting, in the Euclidean geometry, and the method
    is semismooth: its systems hold what is active only (40 equations for a lasso with 40
    coefficients that are not zero), and where no Newton step halves ‖z − T(z)‖, T makes steps of
    its own. It ends at a solution, not near it. Each element of a batch has its own systems.

    At a solution the derivative of the full step in x vanishes, so ``OneStep()`` is the exact
    derivative, for one transposed solve; the other fixed-point strategies end after one product.
    The factors count as constants, also for ``Unroll``, which is exact where the solve has arrived.
    Defaults: ``reuse=0.3``, ``most=60``.
    Reference: Boyd and Vandenberghe, Section 9.5; Qi and Sun (1993).

    Args:
        reuse: smooth energies: how slowly Newton's decrement may shrink before H is made anew.
        most: smooth energies: how often a line search halves its step.
        base: the algorithm whose step T is, :class:`ForwardBackward` or :class:`PrimalDual` with
            steps of your own; None for its default.

    >>> A, b = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]), torch.tensor([1.0, -1.0, 1.0])
    >>> weight = torch.tensor(0.5, requires_grad=True)
    >>> problem = lg.Composite(lg.Logistic(A, b), lg.SquaredNorm(weight))
    >>> solution = lg.solve(problem, lg.Newton(), gradient=lg.OneStep(), stop=lg.Stop(50, tol=1e-6))
    >>> solution.x.detach().round(decimals=3), solution.iterations
    (tensor([ 1.1500, -0.4640]), 5)
    >>> solution.x.sum().backward()
    >>> weight.grad.round(decimals=3)
    tensor(-0.8900)
    >>> lasso = lg.Composite(lg.LeastSquares(A, b), lg.L1(0.5))
    >>> lg.solve(lasso, lg.Newton(), stop=lg.Stop(50, tol=1e-6)).x
    tensor([ 0.8889, -0.2778])
    """

    reuse: float = 0.3
    most: int = 60
    base: ForwardBackward | PrimalDual | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.reuse < 1 and self.most >= 1):
            raise InputError(f"Newton needs 0 ≤ reuse < 1 and most ≥ 1, not {self!r}.")
        if self.base is None:
            return
        if not isinstance(self.base, ForwardBackward | PrimalDual):
            raise InputError(
                f"base of Newton must be a ForwardBackward or a PrimalDual, not {self.base!r}."
            )
        geometries = [self.base.geometry, getattr(self.base, "dual_geometry", None)]
        if not all(g is None or is_euclidean(g) for g in geometries):
            raise InputError(
                f"Newton works in the Euclidean geometry, where proxes have symmetric derivatives, "
                f"not in that of {self.base!r}. Leave geometry out, or use that algorithm itself."
            )

    # --- which of the two -------------------------------------------------------------------------

    @property
    def _smooth(self) -> SmoothNewton:
        return SmoothNewton(self.reuse, self.most)

    def moves_apart(self, problem: Any) -> bool:
        return not is_smooth(problem)  # there one line search serves all

    def _splitting(self, problem: Any) -> Semismooth:
        base = self.base
        if isinstance(problem, Saddle):
            if isinstance(base, ForwardBackward):
                raise InputError("A Saddle problem needs Newton(base=PrimalDual(…)), or base=None.")
            if base is not None and base.average:
                raise InputError("Averages are no fixed points: use PrimalDual without average.")
            if base is not None and (base.restart or isinstance(base.balance, AdaptiveBalance)):
                raise InputError(
                    "Newton takes single steps of its base: use PrimalDual without restart, and "
                    "with a number as balance."
                )
            return Semismooth(base)
        if not isinstance(problem, Composite):
            raise InputError(
                f"Newton solves Composite and Saddle problems, not {type(problem).__name__}."
            )
        if isinstance(base, PrimalDual):
            raise InputError(
                "A Composite problem needs Newton(base=ForwardBackward(…)), or base=None."
            )
        return Semismooth(base)

    # --- the iteration ----------------------------------------------------------------------------

    def init(self, problem: Any, x0: Var | None) -> Any:
        if is_smooth(problem):
            return self._smooth.init(problem, x0)
        found = self._splitting(problem)

        def start(base: Any) -> Any:
            made = base.init(problem, x0)
            require_real_variable(made)
            return made

        return found.begin(problem, start, known=x0 is not None)

    def resume(self, problem: Any, state: Any) -> Any:
        if is_smooth(problem) or isinstance(state, NewtonState):
            return self.init(problem, self.solution(state))
        found = self._splitting(problem)
        if isinstance(problem, Saddle) != (len(state.z) > 1):
            return self.init(problem, self.solution(state))
        at: Any = MirrorPair(*state.z) if len(state.z) > 1 else MirrorState(*state.z)
        return found.begin(problem, lambda base: base.resume(problem, at), known=True)

    def proceed(self, problem: Any, state: Any) -> Any:
        return self.resume(problem, state)  # what is kept may belong to data that have changed

    def recomputed(self, problem: Any, state: Any) -> Any:
        if isinstance(state, NewtonState):
            return self._smooth.recomputed(problem, state)
        splitting = self._splitting(problem).splitting(problem, state)
        return state._replace(image=splitting(state.z))

    def step(self, problem: Any, state: Any) -> Any:
        if isinstance(state, NewtonState):
            return self._smooth.step(problem, state)
        return self._splitting(problem).step(problem, state)

    # --- reading a state --------------------------------------------------------------------------

    def solution(self, state: Any) -> Var:
        return state.point if isinstance(state, NewtonState) else state.z[0]

    def dual(self, state: Any) -> Var | None:
        return state.z[1] if isinstance(state, SemismoothState) and len(state.z) > 1 else None

    def points(self, state: Any) -> Var:
        return state.point if isinstance(state, NewtonState) else state.z

    def fixed_point_map(self, state: Any) -> tuple[Algorithm[Any, Any], Any]:
        if isinstance(state, NewtonState):
            return self._smooth.fixed_point_map(state)
        return NewtonMap(state.tau, state.sigma), Points(state.z)

    def with_variables(self, state: Any, reduced: Any) -> Any:
        if isinstance(state, NewtonState):
            return self._smooth.with_variables(state, reduced)
        return state._replace(z=reduced.z, image=reduced.z)

    def steps(self, problem: Any, state: Any) -> dict[str, Any]:
        if isinstance(state, NewtonState):
            return {}
        found = {"tau": state.tau, "sigma": state.sigma}
        return found if isinstance(problem, Saddle) else {"step": state.tau}

    def require_sound(self, state: Any) -> None:
        points: tuple[Tensor, ...] = tuple(tree.leaves(self.points(state)))
        if not tree.is_finite(points):
            raise DivergenceError(
                "Newton diverged: its point holds NaN or infinity. Start closer to the solution, "
                "look for non-finite values in the problem, or use ForwardBackward."
            )
