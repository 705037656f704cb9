"""What the primal–dual iteration keeps from one step to the next."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from legato._support.tree import Var
from legato.algorithms.saddle.steps import Steps, Units


class MirrorPair(NamedTuple):
    """Mirror coordinates of both variables alone: what the fixed-point map iterates."""

    primal: Var
    dual: Var


class PrimalDualState(NamedTuple):
    """Mirror coordinates and points of both variables, and the derived steps."""

    primal: Var
    dual: Var
    x: Var
    y: Var
    steps: Steps


class AveragedState(NamedTuple):
    """As PrimalDualState, with the running means of both points and how many they hold."""

    primal: Var
    dual: Var
    x: Var
    y: Var
    steps: Steps
    x_mean: Var
    y_mean: Var
    number: Tensor


class AdaptiveState(NamedTuple):
    """The iterate z, the points T(z) of the step before, and what restarts and balances need.

    ``begun`` is where the present run began, ``number`` and ``total`` are its iterations and all,
    ``first`` and ``last`` are residuals, ``changes`` counts those of the balance.
    """

    primal: Var
    dual: Var
    x: Var
    y: Var
    units: Units
    balance: Tensor
    begun: MirrorPair
    number: Tensor
    total: Tensor
    first: Tensor
    last: Tensor
    changes: Tensor


State = MirrorPair | PrimalDualState | AveragedState | AdaptiveState
