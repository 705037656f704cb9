"""Images from what an operator saw of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from legato._support.checks import describe, require_finite, require_positive
from legato._support.lazy import lazy
from legato._support.precision import full_precision, out_of_autocast
from legato._support.tree import Var, inner, sum_beyond
from legato.algorithms import Algorithm, ForwardBackward, PrimalDual
from legato.errors import InputError
from legato.functions import Box, Composed, Function, Separable, SquaredDistance, SquaredNorm
from legato.functions.algebra import terms_of
from legato.gradients import GradientStrategy
from legato.nn._solve import LayerOutput, SolverLayer
from legato.nn.reconstruction.bounds import least_singular_value
from legato.nn.reconstruction.over_fields import set_apart
from legato.nn.reconstruction.posed import OverImages, posed
from legato.nn.reconstruction.spectral import SpectralLeastSquares
from legato.operators import Blur, Operator, as_operator
from legato.problems import Saddle

_PRECISIONS = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_FIRST = 10
"""Iterations of conjugate gradients behind a first image: before noise is fitted."""
_GOES = 0.2
"""How far an image goes from the first one, in deviations of its pixels."""
_BALANCE = 30.0
"""Where nothing is known about a dual variable."""


@dataclass
class ReconstructionOutput(LayerOutput):
    """What :meth:`Reconstruction.solve` returns.

    Attributes:
        first: the image that the solve started from, and that weights were read off.
        fit, operator, ridge: the data term D, A, and the ridge of the energy.
        posed: how image and variable of the problem belong together, which :class:`TGV` tells
            apart: ``solution.x`` is (B, C, 3, H, W), the image and its field v.

    >>> layer = Reconstruction(lg.Identity(), TV(0.1), ridge=0.1, iterations=300, balance=1.0)
    >>> record = layer.solve(torch.rand(1, 1, 8, 8))
    >>> bool(record.gap < 1e-3), bool(record.error < 0.05)
    (True, True)
    """

    first: Tensor
    fit: Function
    operator: Operator
    ridge: float
    posed: OverImages

    @property
    def x(self) -> Tensor:
        """The images."""
        return self.posed.image(self.solution.x)

    @property
    def field(self) -> Tensor | None:
        """The field v (B, C, 2, H, W) of :class:`TGV`; None for other regularisers."""
        return self.posed.field(self.solution.x)

    @lazy
    def modulus(self) -> float:
        """m: minus m/2‖·‖² the energy is still convex, without asking R for any; 0: unknown."""
        return self._curvature + self.ridge

    @lazy
    def _curvature(self) -> float:
        """Of the data term."""
        if not isinstance(self.fit, SquaredDistance):
            return 0.0
        weight = float(torch.as_tensor(self.fit.weight).detach().amin())
        return weight * least_singular_value(self.operator, self.first) ** 2

    @lazy
    def gap(self) -> Tensor:
        """By at most this the energy of each image is above its minimum.

        Finite where the layer has a ``box`` or a ``ridge``, or the data term is strongly convex.
        """
        y = None if self.y is None else _detached(self.y)
        terms = terms_of(self.posed.flat.smooth)
        seen = any(isinstance(t, Composed) and t.operator is self.operator for t in terms)
        curvature = self._curvature if seen else 0.0  # else it is counted among the other terms
        found = self.posed.gap(self.solution.x.detach(), y, curvature)
        # Below rounding of the energy nothing is known: no solution is called exact.
        rounding = 8 * torch.finfo(found.dtype).eps * self.solution.objective.abs()
        return torch.maximum(found, torch.where(rounding.isfinite(), rounding, 0.0))

    @lazy
    def error(self) -> Tensor:
        """‖x − x*‖ ≤ √(2 gap/m) for each image; infinite where m is unknown."""
        if self.modulus == 0:
            return torch.full_like(self.gap, torch.inf)
        return (2 * self.gap / self.modulus).sqrt()


class Reconstruction(SolverLayer):
    r"""An image from what a linear operator saw of it, by a data term and a learned regulariser.

    .. math:: x = \arg\min_x\; D(Ax, y) + R_θ(x)

    The derivative is that of ``gradient``: ``Unroll()`` for that of the iterations, whose number is
    then part of the model, ``Implicit()`` and its kin for that of the solution, with a memory that
    does not grow with the iterations. Steps are derived from norms; the derivative counts those
    that are found by iteration as constants, and ``solution.constant_steps`` says so.

    Defaults: ``ridge=0.0``, ``iterations=100``.

    Args:
        operator (Operator or Tensor): A, such as :class:`~legato.Blur`, :class:`~legato.Radon`,
            :class:`~legato.Mask` or a matrix. Batches are leading axes.
        regulariser (Module): from a first image to the term R: :class:`TV`, :class:`TGV`,
            :class:`Filters`, :class:`ConvexRidges`, or a module of your own that returns a
            function.
        data (callable): from y to D, a convex function of Ax: ``SquaredDistance``,
            ``KullbackLeibler``, or ``lambda y: lg.L2Ball(delta, dim).shifted(y)``.
            Default: ``SquaredDistance``
        box (pair of floats, optional): lo ≤ x ≤ hi is asked for. Default: None
        ridge (float): adds ridge/2‖x‖², which makes the solution unique. Default: 0.0
        first (callable, optional): from y to a first image, where the solve starts and which
            weights are read off. Default: None, ten conjugate gradients of the normal equations
        iterations (int): Default: 100
        tol (float, optional): stop once the residual is at most this; a warning says where
            ``iterations`` do not reach it. Default: None, all iterations
        balance (float, optional): the ratio r of primal to dual steps of the primal–dual method;
            the dual variable has to reach λ within the iterations, else λ has no influence.
            Default: None, for each image from the deviation of its pixels, as far as x has to go,
            and the mean slope of the regulariser, as far as the dual variable has to go
        algorithm (Algorithm, optional): instead of ``PrimalDual(balance=…)`` or, where everything
            is smooth but for the box, ``ForwardBackward()``. Default: None
        gradient (GradientStrategy, optional): how to differentiate. Default: ``Unroll()``

    Shape:
        - y: what A gives for images, (B, 1, …)
        - output: x, what A takes, (B, 1, H, W)

    Returns:
        Tensor: the images x.

    Reference: Scherzer et al. (2009), *Variational Methods in Imaging*; Kunisch and Pock (2013).

    >>> blur = lg.Blur(torch.full((3, 3), 1 / 9))
    >>> layer = Reconstruction(blur, TV(0.01), iterations=50)
    >>> truth = torch.zeros(1, 1, 16, 16)
    >>> truth[..., 4:12, 4:12] = 1
    >>> x = layer(blur(truth))
    >>> bool((x - truth).norm() < 0.5 * (blur(truth) - truth).norm())
    True
    >>> (x - truth).square().sum().backward()
    >>> layer.regulariser.weight.log.grad.shape
    torch.Size([])
    """

    def __init__(
        self,
        operator: Operator | Tensor,
        regulariser: nn.Module,
        *,
        data: Callable[[Tensor], Function] = SquaredDistance,
        box: tuple[float, float] | None = None,
        ridge: float = 0.0,
        first: Callable[[Tensor], Tensor] | None = None,
        iterations: int = 100,
        tol: float | None = None,
        balance: float | None = None,
        algorithm: Algorithm[Any, Any] | None = None,
        gradient: GradientStrategy | None = None,
    ) -> None:
        super().__init__(iterations, tol, gradient)
        if not isinstance(regulariser, nn.Module):
            raise InputError(
                f"regulariser must be a module such as TV(), not {type(regulariser).__name__}: it "
                "is called with a first image and returns a term."
            )
        if box is not None:
            Box(*box)  # which refuses what is none
        if not 0 <= ridge < math.inf:
            raise InputError(f"ridge must be at least 0 and finite, not {ridge!r}.")
        if balance is not None:
            require_positive(balance, "balance")
        self.operator = as_operator(operator)
        self.regulariser = regulariser
        self.data, self.box, self.ridge, self.first = data, box, float(ridge), first
        self.balance, self.algorithm = balance, algorithm

    def extra_repr(self) -> str:
        return f"operator={self.operator!r}, box={self.box}, ridge={self.ridge}, {self._settings()}"

    def forward(self, y: Tensor) -> Tensor:
        """Reconstruct images.

        Args:
            y (Tensor): what the operator saw of them.

        Returns:
            Tensor: x.
        """
        return self.solve(y).x

    def solve(self, y: Tensor, x0: Any = None, inner: Any = None) -> ReconstructionOutput:
        """The full record.

        Args:
            y (Tensor): as of :meth:`forward`.
            x0: where to start: an image, or an earlier solution's state. Default: the first image
            inner (InnerSolver, optional): that of a loss in :func:`legato.fit`, which then solves
                from its last solution and as exactly as its progress asks for. Default: None

        Returns:
            ReconstructionOutput: x, gap, error, solution, problem, first.
        """
        y = out_of_autocast(y)
        with full_precision():
            self._require_data(y)
            first = self.first_image(y)
            term = self.regulariser(out_of_autocast(first))
            if not isinstance(term, Function):
                raise InputError(
                    f"{type(self.regulariser).__name__} returned a {type(term).__name__}; a "
                    "regulariser returns a term of the image, such as L1(w) @ Differences()."
                )
            fit = self.data(y)
            over_fields, others = set_apart(term)
            problem = posed(self._energy(fit, others), over_fields)
            algorithm = self._algorithm_for(problem.flat, first)
            start = problem.start(x0, first)
            if inner is None:
                done = self._solve(problem.problem, algorithm, start)
            else:
                done = inner.solve(
                    problem.problem, algorithm, start, gradient=self.gradient, stop=self.stop
                )
            return ReconstructionOutput(
                problem.problem, done, first, fit, self.operator, self.ridge, problem
            )

    def first_image(self, y: Tensor) -> Tensor:
        """Where a solve starts, and what weights are read off."""
        return least_squares(self.operator, y, _FIRST) if self.first is None else self.first(y)

    def _energy(self, fit: Function, terms: tuple[Function, ...]) -> Function:
        energy = sum(terms, self._behind_operator(fit))
        if self.ridge > 0:
            energy = energy + SquaredNorm(self.ridge)
        return energy if self.box is None else energy + Box(*self.box)

    def _behind_operator(self, fit: Function) -> Function:
        """D(Ax): with a prox where Fourier transforms give one and no box wants it for itself."""
        A = self.operator
        if (
            self.box is None
            and isinstance(A, Blur)
            and A.boundary == "circular"
            and isinstance(fit, SquaredDistance)
            and not (fit.y.is_complex() or A.kernel.is_complex())  # half a spectrum would not do
            and isinstance(fit.weight, float)
            and fit.weight == 1.0
        ):
            return SpectralLeastSquares(A, fit.y)
        return fit @ A

    def _algorithm_for(self, problem: Any, first: Tensor) -> Algorithm[Any, Any]:
        if self.algorithm is not None:
            return self.algorithm
        if not isinstance(problem, Saddle):
            return ForwardBackward()
        balance = balance_of(problem, first) if self.balance is None else self.balance
        return PrimalDual(balance=balance)

    def _require_data(self, y: Any) -> None:
        if not isinstance(y, Tensor):
            raise InputError(f"y must be a tensor, what the operator saw, not {describe(y)}.")
        if y.dtype not in _PRECISIONS:
            raise InputError(f"y is {y.dtype}; the solver computes in single or double precision, "
                             "real or complex. Call .float() on it.")  # fmt: skip
        if y.numel() == 0:
            raise InputError(f"y of shape {tuple(y.shape)} is empty: nothing to reconstruct.")
        require_finite(torch.view_as_real(y) if y.is_complex() else y, "y")


def balance_of(problem: Saddle, x: Tensor) -> Tensor | float:
    r"""The ratio of how far a primal and a dual variable have to go, for each element of a batch.

    .. math:: r = \frac15\, \operatorname{std}(x) \sqrt{\frac{n}{m}} \Bigm/
              \frac{h(Kx)}{\sum_i |(Kx)_i|}, \qquad x ∈ ℝ^n,\; Kx ∈ ℝ^m

    The m entries of the dual variable of a penalty of slope λ have this size. The factor is from
    total variation of denoised, blurred and undersampled pictures, where a ratio three times as
    large or small takes up to three times as many iterations. Where x or Kx tell nothing, or more
    than one penalty has a dual variable: 30.
    """
    if isinstance(problem.penalty, Separable):
        return _BALANCE
    batch = problem.batch(x)
    image = problem.operator(x)
    sizes = sum_beyond(image.abs(), batch)
    height = problem.penalty.values(image, batch)
    shade = (x.abs() if x.is_complex() else x).reshape(*x.shape[:batch], -1)
    spread = (shade - shade.mean(-1, keepdim=True)).square().mean(-1)
    sound = (sizes > 0) & (height > 0) & (spread > 0)
    # Ones stand for what is not sound, so that no derivative is made of 0/0.
    sizes, height, spread = (torch.where(sound, t, 1.0) for t in (sizes, height, spread))
    entries = shade.shape[-1] / math.prod(image.shape[batch:])
    found = _GOES * spread.sqrt() * math.sqrt(entries) * sizes / height
    found = torch.where(sound & torch.isfinite(found), found, _BALANCE)
    return found.reshape(()) if found.numel() == 1 else found  # steps are numbers where they can be


def least_squares(operator: Operator, y: Tensor, iterations: int) -> Tensor:
    r"""Some conjugate gradients for the normal equations, from zero: few of them regularise.

    .. math:: A^*A x = A^*y

    Reference: Hanke (1995), *Conjugate Gradient Type Methods for Ill-Posed Problems*.
    """
    r = operator.adjoint(y)
    batch = 0 if operator.coupled is None else max(0, r.ndim - operator.coupled[0])
    x, p, size = torch.zeros_like(r), r, _spread(inner(r, r, batch), r)
    for _ in range(iterations):
        image = operator(p)
        seen = image.ndim - (image.ndim if operator.coupled is None else operator.coupled[1])
        curvature = _spread(inner(image, image, seen), r)
        # Where nothing is left to explain, steps are 0/0 and nothing moves.
        step = torch.where(curvature > 0, size / torch.where(curvature > 0, curvature, 1.0), 0.0)
        x = x + step * p
        r = r - step * operator.adjoint(image)
        now = _spread(inner(r, r, batch), r)
        p = r + torch.where(size > 0, now / torch.where(size > 0, size, 1.0), 0.0) * p
        size = now
    return x


def _spread(number: Tensor, like: Tensor) -> Tensor:
    return number.reshape(*number.shape, *(1,) * (like.ndim - number.ndim))


def _detached(y: Var) -> Var:
    return tuple(_detached(t) for t in y) if isinstance(y, tuple) else y.detach()
