"""What came of a computation: values and gradients, a refusal in words, or a raw error."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from legato.errors import LegatoError, LegatoWarning
from metamorphic.subject import Inputs, Subject


@dataclass
class Outcome:
    """Outputs, and gradients by the name of what they belong to; or why there are none."""

    values: list[Tensor] = field(default_factory=list)
    slopes: dict[str, Tensor | None] = field(default_factory=dict)
    refusal: str = ""
    raw: str = ""
    warned: tuple[str, ...] = ()

    @property
    def fine(self) -> bool:
        return not self.refusal and not self.raw


def caught(
    compute: Callable[[], Outcome], refuses: Callable[[Exception], bool] = lambda error: False
) -> Outcome:
    """The outcome of a computation, whatever it raises; warnings of legato are noted.

    What ``refuses`` is an error of somebody else that is no fault of ours.
    """
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        try:
            found = compute()
        except LegatoError as error:
            found = Outcome(refusal=f"{type(error).__name__}: {error}")
        except Exception as error:
            if _says_scikit_learn(error) or refuses(error):
                found = Outcome(refusal=f"{type(error).__name__}: {error}")
            else:
                found = Outcome(raw=f"{type(error).__name__}: {str(error)[:300]}")
    words = [w.category.__name__ for w in noted if issubclass(w.category, LegatoWarning)]
    found.warned = tuple(dict.fromkeys(words))
    return found


def _says_scikit_learn(error: Exception) -> bool:
    """Whether its own check of the arguments refuses them: estimators are to fail as others do."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_globals["__name__"] == "sklearn.utils.validation"


def outputs_of(subject: Subject, built: Any, inputs: Inputs) -> list[Tensor]:
    found = subject.run(built, inputs)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def cotangents(values: Sequence[Tensor]) -> list[Tensor]:
    """Weights of a loss ⟨c, y⟩ that sees every entry differently, the same in every batch."""
    return [
        torch.cos(1.0 + torch.arange(v.numel(), dtype=torch.float64)).reshape(v.shape).to(v.dtype)
        for v in values
    ]


def leaves(inputs: Inputs) -> Inputs:
    """Fresh copies that record gradients."""
    return {k: v.detach().clone().requires_grad_() for k, v in inputs.items()}


def loss_of(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    parts = [(c * v).sum() for c, v in zip(weights, values, strict=True) if v.requires_grad]
    return torch.stack([p.double() for p in parts]).sum()


def slopes_of(
    subject: Subject,
    values: Sequence[Tensor],
    at: Inputs,
    parameters: Sequence[Tensor] = (),
    weights: Sequence[Tensor] | None = None,
    retain: bool = False,
) -> dict[str, Tensor | None]:
    """The gradient of ⟨c, y⟩ in every input and every parameter; None where there is none."""
    names = [*at, *(f"parameter {i}" for i in range(len(parameters)))]
    wanted = [*at.values(), *parameters]
    if not any(v.requires_grad for v in values):
        return dict.fromkeys(names)
    weights = cotangents(values) if weights is None else weights
    found = torch.autograd.grad(
        loss_of(values, weights), wanted, allow_unused=True, retain_graph=retain
    )
    return dict(zip(names, found, strict=True))


def compute(
    subject: Subject,
    inputs: Inputs,
    weights: Sequence[Tensor] | None = None,
    view: Callable[[Tensor], Tensor] | None = None,
    layer: nn.Module | None = None,
) -> Outcome:
    """Build, run and differentiate; ``view`` changes how inputs lie in memory, not what they are.

    A layer that exists already may be given: parameters are made before they are used.
    """
    at = leaves(inputs) if subject.differentiable else dict(inputs)
    seen = at if view is None else {k: view(v) for k, v in at.items()}
    built = subject.build(seen) if layer is None else layer
    values = outputs_of(subject, built, seen)
    if not subject.differentiable:
        return Outcome([v.detach() for v in values])
    slopes = slopes_of(subject, values, at, subject.parameters(built), weights)
    return Outcome([v.detach() for v in values], slopes)


@dataclass
class Case:
    """A subject with one draw of its inputs, and what it gives undisturbed."""

    subject: Subject
    seed: int

    @cached_property
    def inputs(self) -> Inputs:
        return self.subject.inputs(self.seed)

    @cached_property
    def layer(self) -> nn.Module | None:
        """The layer, if it is one; energies are made of their inputs, whenever those are known."""
        made = self.subject.build(self.inputs)
        return made if isinstance(made, nn.Module) else None

    def build(self, inputs: Inputs) -> Any:
        return self.subject.build(inputs) if self.layer is None else self.layer

    @cached_property
    def expected(self) -> Outcome:
        return caught(lambda: compute(self.subject, self.inputs))

    @cached_property
    def truncation(self) -> float:
        """How much of a slope a cut sweep leaves out, at most, in double and single precision."""
        subject = self.subject
        if subject.untruncated is None:
            return 0.0
        whole = replace(subject, build=subject.untruncated)
        off = 0.0
        for inputs in (self.inputs, {k: v.float() for k, v in self.inputs.items()}):
            cut, full = (caught(lambda s=s, i=inputs: compute(s, i)) for s in (subject, whole))
            floor = least_slope(full)
            off = max(
                [off, *(difference(cut.slopes[k], full.slopes[k], floor) for k in cut.slopes)]
            )
        return off

    def __str__(self) -> str:
        return f"{self.subject}, seed {self.seed}"


def least_slope(outcome: Outcome) -> float:
    """Below it a slope counts as 0, which the solve and rounding leave of one that cancels.

    A twentieth of the largest, and a hundredth of the outputs where all are next to nothing.
    """
    slopes = [_largest(s) for s in outcome.slopes.values() if s is not None]
    values = [_largest(v) for v in outcome.values]
    return max([0.05 * s for s in slopes] + [0.01 * v for v in values], default=0.0)


def _largest(t: Tensor) -> float:
    finite = t.detach()[torch.isfinite(t)].abs()
    return float(finite.max()) if finite.numel() else 0.0


def difference(found: Tensor | None, right: Tensor | None, floor: float = 0.0) -> float:
    """max |a − b| / max |b|; 0 only if all entries are the same, NaN and infinities included.

    Below ``floor``, |b| counts as that.
    """
    if found is None or right is None:
        other = right if found is None else found
        return 0.0 if other is None or not bool(other.detach().any()) else math.inf
    if found.shape != right.shape:
        return math.inf
    a, b = found.detach().double(), right.detach().double()
    if torch.equal(a, b):
        return 0.0
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    if bool(same.all()):
        return 0.0
    size = b[torch.isfinite(b)].abs().max() if bool(torch.isfinite(b).any()) else torch.ones(())
    gap = (a - b).abs()[~same].max()
    if not bool(torch.isfinite(gap)):
        return math.inf
    scale = max(float(size), floor)
    return float(gap) / scale if scale > 0 else math.inf
