"""A regulariser that is itself a minimum, over a vector field beside the image.

Image and field are one variable z of one axis more, (…, 3, H, W): the image, then the field. Its
leading axes stay a batch, which those of a tuple would not be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import pad

from legato._support.tree import Var, real_like
from legato.errors import InputError, MissingProxError
from legato.functions import Function, Scaled, register_prox
from legato.functions.algebra import terms_of
from legato.functions.base import ProxParts
from legato.functions.prox import has_prox, mirror_prox
from legato.geometry import Euclidean, Geometry
from legato.operators import Differences, Operator, Stack, SymmetrisedGradient

ROWS = -3
"""The axis of z along which image and field stand."""
GRADIENT = Differences()
BENDS = SymmetrisedGradient()
_SIZE = math.sqrt((17 + math.sqrt(33)) / 2)
"""√ of the larger eigenvalue of ((8, √8), (√8, 1 + 8)), for ‖∇‖² ≤ 8 and ‖E‖² ≤ 8."""


@dataclass(frozen=True, eq=False, repr=False)
class OverFields(Function):
    r"""The least of two norms over all vector fields.

    .. math:: R(x) = \min_v\; \sum_i λ_{1,i}\,|(∇x − v)_i| + \sum_i λ_{0,i}\,‖(Ev)_i‖_F

    Args:
        slope: λ₁, a number, or a tensor that broadcasts to (…, 1, H, W).
        bend: λ₀, likewise.
    """

    takes_complex: ClassVar[bool] = True

    slope: Tensor | float
    bend: Tensor | float

    def times(self, factor: Tensor | float) -> OverFields:
        """c·R."""
        return OverFields(factor * self.slope, factor * self.bend)

    def values(self, x: Var, batch: int) -> Tensor:
        self._refuse()

    def value(self, x: Var) -> Tensor:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InputError(
            "Total generalised variation is itself a minimum, over fields v, and has no value in "
            "closed form. Reconstruction and DeepinvPrior(…).prox minimise over x and v together; "
            "the record of Reconstruction.solve has v as field, and in solution.objective the "
            "energy at both."
        )

    @property
    def coupled(self) -> int:
        return 2

    def make_conjugate(self) -> NoReturn:
        raise InputError(
            f"{self!r} is a minimum over fields v beside the image, which only Reconstruction "
            "solves for. In an energy of your own write both unknowns: see "
            "legato.operators.parts."
        )


def set_apart(term: Function) -> tuple[OverFields | None, tuple[Function, ...]]:
    """The minimum over fields among the terms of a sum, and the others."""
    found: list[OverFields] = []
    others: list[Function] = []
    for part in terms_of(term):
        factors = []
        core = part
        while isinstance(core, Scaled):
            factors.append(core.factor)
            core = core.function
        if not isinstance(core, OverFields):
            others.append(part)
            continue
        for factor in factors:
            core = core.times(factor)
        found.append(core)
    if len(found) > 1:
        raise InputError(
            f"The regulariser is a sum with {len(found)} terms of total generalised variation, "
            "each with a field of its own; one is possible. Add their weights, or write the energy "
            "over several unknowns: see legato.operators.parts."
        )
    return (found[0] if found else None), tuple(others)


# --- image and field as one variable --------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Image(Operator):
    """The image x in z; ‖·‖ = 1."""

    @property
    def coupled(self) -> tuple[int, int]:
        return 3, 2

    def __call__(self, x: Var) -> Var:
        return x.select(ROWS, 0)

    def adjoint(self, y: Var) -> Var:
        return pad(y.unsqueeze(ROWS), (0, 0, 0, 0, 0, 2))

    def norm(self, like: Var | None = None) -> Tensor:
        return torch.ones(()) if like is None else real_like(like).new_ones(())

    def absolute(self) -> Operator:
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Field(Operator):
    """The field v in z; ‖·‖ = 1."""

    @property
    def coupled(self) -> tuple[int, int]:
        return 3, 3

    def __call__(self, x: Var) -> Var:
        return x.narrow(ROWS, 1, 2)

    def adjoint(self, y: Var) -> Var:
        return pad(y, (0, 0, 0, 0, 1, 0))

    def norm(self, like: Var | None = None) -> Tensor:
        return torch.ones(()) if like is None else real_like(like).new_ones(())

    def absolute(self) -> Operator:
        return self


class Lifted(Stack):
    r"""What else there is of the image, then the two parts of R.

    .. math:: Kz = (K_1x, …, K_kx,\; ∇x − v,\; Ev), \quad
              ‖K‖² ≤ \sum_j ‖K_j‖² + \tfrac12(17 + \sqrt{33})
    """

    def __init__(self, *operators: Operator) -> None:
        own = (GRADIENT @ Image() - Field(), BENDS @ Field())
        super().__init__(*(K @ Image() for K in operators), *own)

    def norm(self, like: Var | None = None) -> Tensor:
        others = self.operators[:-2]
        if not others:
            own = torch.tensor(_SIZE)
            return own if like is None else real_like(like).new_full((), _SIZE)
        rest = Stack(*others).norm(like)
        return (rest.square() + _SIZE**2).sqrt()


class OfImage(Function):
    """A function of the image alone, f(z) = f(x): the field stays where it is."""

    takes_complex: ClassVar[bool] = True

    def __init__(self, function: Function) -> None:
        self.function = function

    def value(self, x: Var) -> Tensor:
        return self.function.value(x.select(ROWS, 0))

    def values(self, x: Var, batch: int) -> Tensor:
        return self.function.values(x.select(ROWS, 0), batch)

    @property
    def coupled(self) -> int | None:
        own = self.function.coupled
        return own if own is None or own < -ROWS else own + 1

    def start(self) -> Var | None:
        image = self.function.start()
        return None if image is None or image.ndim < 2 else with_no_field(image)

    @property
    def is_smooth(self) -> bool:
        return self.function.is_smooth

    def grad(self, x: Var) -> Var:
        return Image().adjoint(self.function.grad(x.select(ROWS, 0)))

    def lipschitz(self) -> Tensor | float | None:
        constant = self.function.lipschitz()
        if isinstance(constant, Tensor) and constant.ndim >= -ROWS:
            return constant.unsqueeze(ROWS)
        return constant

    def kinks(self, y: Tensor, step: Any) -> Tensor | None:
        found = self.function.kinks(y.select(ROWS, 0), _step_of_image(step))
        return None if found is None else found.unsqueeze(ROWS)

    def prox_parts(self, geometry: Geometry) -> ProxParts:
        if not has_prox(self.function, geometry):
            raise MissingProxError(f"No closed-form prox of {self.function!r}.")
        return ProxParts(self)

    def __repr__(self) -> str:
        return f"OfImage({self.function!r})"


@register_prox(OfImage, Euclidean)
def _(f: OfImage, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    image = mirror_prox(f.function, geometry, y.select(ROWS, 0), _step_of_image(alpha))
    return torch.cat((image.unsqueeze(ROWS), y.narrow(ROWS, 1, 2)), ROWS)


def _step_of_image(step: Any) -> Any:
    """A step that broadcasts against z as it meets x."""
    return step.select(ROWS, 0) if isinstance(step, Tensor) and step.ndim >= -ROWS else step


def with_no_field(image: Tensor) -> Tensor:
    """z of an image x, with v = 0."""
    return Image().adjoint(image)
