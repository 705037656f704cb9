"""How a reconstruction is posed: over images, or over images and fields beside them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato._support.tree import Var, inner
from legato.algorithms.start import require_fitting
from legato.energy import split
from legato.errors import InputError
from legato.functions import Function, GroupL1, Separable, Zero
from legato.nn.reconstruction.bounds import gap
from legato.nn.reconstruction.over_fields import (
    BENDS,
    GRADIENT,
    ROWS,
    Field,
    Image,
    Lifted,
    OfImage,
    OverFields,
    with_no_field,
)
from legato.operators import Stack
from legato.problems import Problem, Saddle


class OverImages:
    """The problem that an energy is split into, whose variable is the image."""

    def __init__(self, energy: Function) -> None:
        self.flat: Problem = split(energy)

    @property
    def problem(self) -> Problem:
        """What is solved."""
        return self.flat

    def start(self, x0: Any, first: Tensor) -> Any:
        """Where the solve starts: at an image, or an earlier state."""
        return first if x0 is None else x0

    def image(self, x: Tensor) -> Tensor:
        """The image in the variable."""
        return x

    def field(self, x: Tensor) -> Tensor | None:
        """The field in the variable, where there is one."""
        return None

    def gap(self, x: Tensor, y: Var | None, modulus: float) -> Tensor:
        """By at most this the energy of each element is above its minimum."""
        return gap(self.flat, x, y, modulus)


class OverImagesAndFields(OverImages):
    r"""The problem of an energy with R, written over image and field; ``flat`` has v = 0.

    .. math:: \min_x\; E(x) + R(x) \;=\; \min_{x, v}\; E(x) + λ_1‖∇x − v‖ + λ_0‖Ev‖
    """

    def __init__(self, energy: Function, term: OverFields) -> None:
        slope, bend = GroupL1(term.slope, dim=ROWS), GroupL1(term.bend, dim=ROWS)
        super().__init__(energy + slope @ GRADIENT)
        flat = self.flat
        assert isinstance(flat, Saddle)
        blocks = flat.penalty.blocks if isinstance(flat.penalty, Separable) else (flat.penalty,)
        self._operators = (
            flat.operator.operators if isinstance(flat.operator, Stack) else (flat.operator,)
        )
        others = [k for k, h in enumerate(blocks) if h is not slope]
        self._blocks, self._others = blocks, others
        self._slope, self._bend = slope, bend
        self._problem = Saddle(
            Lifted(*(self._operators[k] for k in others)),
            Separable(*(blocks[k] for k in others), slope, bend),
            _of_image(flat.smooth),
            _of_image(flat.nonsmooth),
        )

    @property
    def problem(self) -> Problem:
        return self._problem

    def start(self, x0: Any, first: Tensor) -> Any:
        """An image begins with v = 0."""
        whole = with_no_field(first)
        if x0 is None:
            return whole
        if not isinstance(x0, Tensor) or x0.shape == whole.shape:
            return x0
        if x0.ndim > first.ndim:
            raise InputError(
                f"x0 has shape {tuple(x0.shape)}: give an image of shape {tuple(first.shape)}, "
                f"image and field as solution.x has them, {tuple(whole.shape)}, or a state."
            )
        require_fitting(x0, first, "x0")
        return with_no_field(x0.expand(first.shape))

    def image(self, x: Tensor) -> Tensor:
        return Image()(x).contiguous()

    def field(self, x: Tensor) -> Tensor | None:
        return Field()(x).contiguous()

    def gap(self, x: Tensor, y: Var | None, modulus: float) -> Tensor:
        r"""As over images, with a dual variable of R that is feasible.

        .. math:: R(x) = \max_q\; ⟨∇x, E^*q⟩ \quad\text{where}\quad |q| ≤ λ_0,\; |E^*q| ≤ λ_1

        The field is free, so that the gap of image and field is infinite at almost all dual
        variables. Those of the last block, scaled down until both bounds hold, give a finite one.
        """
        assert isinstance(y, tuple)
        image, field = self.image(x), Field()(x)
        batch = self.flat.batch(image)
        q = y[-1]
        p = BENDS.adjoint(q)
        scale = torch.minimum(_room(self._slope, p, batch), _room(self._bend, q, batch))
        scale = scale.reshape(*scale.shape, *(1,) * (q.ndim - batch))
        p, q = scale * p, scale * q
        duals = iter(y[:-2])
        blocks = [h.shifted(field) if h is self._slope else h for h in self._blocks]
        flat_y = tuple(p if h is self._slope else next(duals) for h in self._blocks)
        one = len(blocks) == 1
        at_field = Saddle(
            self._operators[0] if one else Stack(*self._operators),
            blocks[0] if one else Separable(*blocks),
            self.flat.smooth,
            self.flat.nonsmooth,
        )
        found = gap(at_field, image, flat_y[0] if one else flat_y, modulus)
        bends = BENDS(field)
        return found + self._bend.values(bends, batch) - inner(bends, q, batch)


def posed(energy: Function, term: OverFields | None) -> OverImages:
    """The problem of an energy, and of a minimum over fields beside it if there is one."""
    return OverImages(energy) if term is None else OverImagesAndFields(energy, term)


def _of_image(term: Function) -> Function:
    return term if isinstance(term, Zero) else OfImage(term)


def _room(penalty: GroupL1, y: Tensor, batch: int) -> Tensor:
    """The factor at most 1 by which a dual variable has to shrink to obey its bound, for each."""
    sizes = penalty.norms(y)
    bound = torch.as_tensor(penalty.weight, dtype=sizes.dtype, device=sizes.device)
    # A little below, for the bound is asked of what is rounded once more.
    bound = bound * (1 - 16 * torch.finfo(sizes.dtype).eps)
    ratio = torch.where(sizes > 0, bound / torch.where(sizes > 0, sizes, 1.0), 1.0)
    return ratio.flatten(batch).amin(-1).clamp(max=1.0)
