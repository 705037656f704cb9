"""Least squares in units of its own data, where neither squares nor steps leave the floats."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from legato.errors import StepError
from legato.functions import LeastSquares
from legato.geometry import Burg, Geometry
from legato.operators import Dense
from legato.solving import Solution


@dataclasses.dataclass(frozen=True)
class Units:
    r"""The sizes a of an operator and β of data; points are measured in β/a.

    .. math:: \arg\min_x\; ‖Ax − b‖ = \tfrac{β}{a}\, \arg\min_u\; ‖\tfrac1a A u − \tfrac1β b‖

    In float32 the step 1/a² is infinite below a = 1e-19, and above 1e19 it is zero; in units both
    are 1, and so are the iterates, whose start is then neither far too large nor far too small.
    They suit geometries that look the same at every scale, such as Entropy and Burg.
    """

    operator: float
    data: float

    @classmethod
    def of(cls, f: LeastSquares) -> Units:
        """a = ‖A‖ and β = max|b|; refuses data whose solution is no number of their precision."""
        with torch.no_grad():
            a = float(torch.as_tensor(f.operator.norm(f.start())).amax())
            beta = float(f.b.abs().amax())
        units = cls(a if a > 0 else 1.0, beta if beta > 0 else 1.0)
        limits = torch.finfo(f.b.dtype)
        if not (math.isfinite(a) and limits.tiny <= units.point <= limits.max):
            raise StepError(
                f"‖A‖ = {a:g} and max|b| = {beta:g}, so that solutions are of size max|b|/‖A‖ = "
                f"{units.point:g}, which is no number of {f.b.dtype} in full precision. Divide "
                "operator and data by their sizes, or use float64."
            )
        return units

    @property
    def point(self) -> float:
        """β/a."""
        return self.data / self.operator

    def measure(self, f: LeastSquares) -> LeastSquares:
        """The same term for points u = x/(β/a)."""
        operator = f.operator
        if type(operator) is Dense:
            return LeastSquares(Dense(operator.matrix / self.operator), f.b / self.data)
        return LeastSquares(operator * (1 / self.operator), f.b / self.data)

    def start(self, x0: Tensor | None) -> Tensor | None:
        """A start in units; what is no floating-point tensor is left for the solver to refuse."""
        if not isinstance(x0, Tensor) or not x0.is_floating_point():
            return x0
        return x0 / self.point

    def restore(self, done: Solution, geometry: Geometry) -> Solution:
        """Value and step as they are for the data as given; the state stays in units.

        ∇f shrinks by 1/(aβ), and so does α where mirror coordinates are the same up to a constant,
        log x; those of Burg, −1/x, grow by a/β. In float64: steps of extreme data need its range.
        """
        shrinks = self.data if isinstance(geometry, Burg) else self.operator
        step = done.steps["step"].double() / shrinks / self.data
        return dataclasses.replace(done, x=done.x * self.point, steps={"step": step})
