"""Numbers from 1e-30 to 1e30, denormals, zeros and ties: finite results, or a word about it.

Where scaling the inputs scales the outputs, the right answer is known at every scale, and a result
that is finite but wrong is a finding as well.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from subjects import STRATEGIES, Subject, subjects
from tally import Tally
from torch import Tensor

import legato as lg
from legato.errors import LegatoError, LegatoWarning

SUBJECTS = subjects()
DTYPES = [torch.float32, torch.float64]
SCALES = [10.0**e for e in (-30, -25, -20, -15, -10, -5, 0, 5, 10, 15, 20, 25, 30)]
FAR = 0.02


def _alternate(t: Tensor) -> Tensor:
    signs = torch.arange(t.numel(), dtype=t.dtype).reshape(t.shape) % 2
    return torch.where(signs > 0, t * 1e20, t * 1e-20)


def _one_large(t: Tensor) -> Tensor:
    t = t.clone()
    t.reshape(-1)[0] = 1e25
    return t


TWISTS: dict[str, Any] = {
    **{f"times {s:g}": (lambda t, s=s: t * s) for s in SCALES[::2]},
    "denormal": lambda t: t * (4 * torch.finfo(t.dtype).tiny * torch.finfo(t.dtype).eps),
    "near the largest number": lambda t: t / t.abs().max().clamp(min=1) * 0.3
    * torch.finfo(t.dtype).max,
    "zero": torch.zeros_like,
    "all equal": torch.ones_like,
    "ties": lambda t: t.sign(),
    "one zero": lambda t: t * (torch.arange(t.numel()).reshape(t.shape) > 0),
    "one large": _one_large,
    "large and small by turns": _alternate,
}  # fmt: skip


@dataclass
class Result:
    value: Tensor | None = None
    grads: dict[str, Tensor] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    foreign: str | None = None

    @property
    def finite(self) -> bool:
        return all(bool(torch.isfinite(t).all()) for t in (self.value, *self.grads.values()))


def compute(subject: Subject, inputs: dict[str, Tensor], cotangent: float = 1.0) -> Result:
    """Value and gradients of ⟨cotangent · slopes, value⟩, and all that was said on the way."""
    result = Result()
    leaves = {k: v.detach().clone().requires_grad_() for k, v in inputs.items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = subject.compute(leaves)
            slopes = torch.cos(torch.arange(value.numel(), dtype=value.dtype))
            slopes = cotangent * slopes.reshape(value.shape)
            grads = torch.autograd.grad(value, list(leaves.values()), slopes, allow_unused=True)
            result.value = value.detach()
            result.grads = {k: g for k, g in zip(leaves, grads, strict=True) if g is not None}
        except LegatoError as error:
            result.said.append(f"{type(error).__name__}: {error}")
        except Exception as error:
            result.foreign = f"{type(error).__name__}: {error}"
    result.said += [
        f"{w.category.__name__}: {w.message}"
        for w in caught
        if issubclass(w.category, LegatoWarning)
    ]
    return result


def judge(tally: Any, name: str, what: str, result: Result) -> bool:
    """Count a result; whether it is there and finite."""
    tally.count("extreme inputs")
    tally.count("extreme inputs: refused or warned about", int(bool(result.said)))
    if result.foreign is not None:
        tally.finding("unclear error", f"{name}; {what}; {result.foreign[:200]}")
        return False
    if result.value is None:
        return False
    if not result.finite:
        bad = [k for k, g in result.grads.items() if not bool(torch.isfinite(g).all())]
        if not bool(torch.isfinite(result.value).all()):
            bad.insert(0, "value")
        if not result.said:
            tally.finding("silent NaN", f"{name}; {what}; in {', '.join(bad)}")
        return False
    return True


def _cast(subject: Subject, dtype: torch.dtype) -> dict[str, Tensor]:
    return {k: v.to(dtype) for k, v in subject.inputs.items()}


def _same(found: Tensor, expected: Tensor) -> bool:
    found, expected = found.double(), expected.double()
    return float((found - expected).norm()) <= FAR * float(expected.norm())


def as_it_is(name: str, dtype: torch.dtype, tally: Tally) -> tuple[Subject, Result | None]:
    """A subject and what it gives without any change, which has to be sound."""
    subject = SUBJECTS[name]
    reference = compute(subject, _cast(subject, dtype))
    if judge(tally, name, f"{dtype}, as it is", reference):
        return subject, reference
    tally.finding("unsound as it is", f"{name}; {dtype}")
    return subject, None


def never_a_silent_nan(name: str, dtype: torch.dtype, tally: Tally) -> None:
    """Every input alone, and all together, through every twist."""
    subject = SUBJECTS[name]
    for twist, change in TWISTS.items():
        for names in [*([k] for k in subject.inputs), list(subject.inputs)]:
            inputs = _cast(subject, dtype)
            for k in names:
                changed = change(inputs[k])
                inputs[k] = changed.abs() if k in subject.nonnegative else changed
            judge(tally, name, f"{dtype}, {'+'.join(names)} {twist}", compute(subject, inputs))


def gradients_scale_with_their_cotangents(name: str, dtype: torch.dtype, tally: Tally) -> None:
    """d(sL) = s dL, also where s² is not a number of this precision."""
    subject, reference = as_it_is(name, dtype, tally)
    if reference is None:
        return
    tiny, huge = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    for s in SCALES:
        result = compute(subject, _cast(subject, dtype), s)
        if not judge(tally, name, f"{dtype}, cotangent {s:g}", result):
            continue
        for key, g in reference.grads.items():
            right = g.double() * s
            if not 1e6 * tiny < float(right.abs().max()) < 1e-3 * huge:
                continue
            tally.count("comparisons")
            if not _same(result.grads[key], right) and not result.said:
                ratio = float(result.grads[key].double().norm() / right.norm())
                tally.finding(
                    "silently wrong", f"{name}; {dtype}, cotangent {s:g}; {key} by {ratio:.3g}"
                )


def solutions_scale_with_their_problems(name: str, dtype: torch.dtype, tally: Tally) -> None:
    """x(s·data) = sᵈ x(data), and the derivative follows."""
    subject, reference = as_it_is(name, dtype, tally)
    if reference is None:
        return
    tiny, huge = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    for s in SCALES:
        inputs = _cast(subject, dtype)
        for k in subject.homogeneous:
            inputs[k] = inputs[k] * s
        result = compute(subject, inputs)
        if not judge(tally, name, f"{dtype}, scaled by {s:g}", result):
            continue
        parts = {"value": (result.value, reference.value, subject.degree)}
        for key, g in reference.grads.items():
            if key in result.grads:
                degree = subject.degree - (key in subject.homogeneous)
                parts[key] = (result.grads[key], g, degree)
        for key, (found, at_one, degree) in parts.items():
            right = at_one.double() * s**degree
            if not 1e6 * tiny < float(right.abs().max()) < 1e-3 * huge:
                continue
            tally.count("comparisons")
            if not _same(found, right) and not result.said:
                ratio = float(found.double().norm() / right.norm())
                tally.finding(
                    "silently wrong", f"{name}; {dtype}, scaled by {s:g}; {key} by {ratio:.3g}"
                )


def operators_and_data_of_different_sizes(name: str, dtype: torch.dtype, tally: Tally) -> None:
    """Also where the size of one is no number of the precision that the other's is squared in."""
    subject = SUBJECTS[name]
    for sizes in itertools.product([1e-30, 1e-20, 1e-10, 1e10, 1e20, 1e30], repeat=2):
        pairs = zip(_cast(subject, dtype).items(), sizes, strict=True)
        inputs = {k: v * s for (k, v), s in pairs}
        what = " and ".join(f"{k} times {s:g}" for k, s in zip(inputs, sizes, strict=True))
        result = compute(subject, inputs)
        if not judge(tally, name, f"{dtype}, {what}", result) or dtype == torch.float64:
            continue
        right = compute(subject, {k: v.double() for k, v in inputs.items()})
        if result.said or right.said or right.value is None or not right.finite:
            continue
        tally.count("comparisons")
        assert result.value is not None
        if float(right.value.abs().max()) > 1e-30 and not _same(result.value, right.value):
            tally.finding("silently wrong", f"{name}; {dtype}, {what}")


def nearly_singular(room: float, strategy: str, dtype: torch.dtype, tally: Tally) -> None:
    """x ← x − (Qx − b) with 1 − ρ = room, started at its solution: dx/db = Q⁻¹ is known."""
    values = torch.tensor([1.0, 0.5, room], dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))
    turn = turn.double()
    Q = turn * values @ turn.T
    x = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    b = (Q @ x).to(dtype).requires_grad_()
    problem = lg.Composite(lg.Quadratic(Q.to(dtype), -b))
    slopes = torch.tensor([0.4, 1.0, -0.7], dtype=torch.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stop = lg.Stop(100)
        gradient = STRATEGIES[strategy]
        done = lg.solve(problem, lg.ForwardBackward(1.0), x.to(dtype), gradient=gradient, stop=stop)
        (g,) = torch.autograd.grad(done.x @ slopes.to(dtype), b)
    tally.count("nearly singular systems")
    if caught:
        tally.count("nearly singular systems: warned about")
        return
    if not bool(torch.isfinite(g).all()):
        tally.finding("silent NaN", f"{strategy}, {dtype}, 1 - rho = {room:g}")
        return
    if strategy.startswith("Unroll"):  # exact for its 100 iterations, whatever they have reached
        right = (turn * ((1 - (1 - values) ** 100) / values.clamp(min=1e-300)) @ turn.T) @ slopes
        if room < 1e-12:
            return
    elif room == 0:
        tally.finding("silent where undetermined", f"{strategy}, {dtype}, room 0")
        return
    else:
        right = (turn / values @ turn.T) @ slopes
    tally.count("comparisons")
    if not _same(g, right):
        error = float((g.double() - right).norm() / right.norm())
        tally.finding("silently wrong", f"{strategy}, {dtype}, 1 - rho = {room:g}, by {error:.3g}")


EVERY = [(name, dtype) for name in SUBJECTS for dtype in DTYPES]
ROOMS = [10.0**-e for e in range(1, 17)] + [0.0]
CHUNKS = len(EVERY) + 1


def chunk(number: int, tally: Tally) -> None:
    """One subject in one dtype through every twist and scale; the last chunk is nearly singular."""
    if number == len(EVERY):
        for room, strategy, dtype in itertools.product(ROOMS, STRATEGIES, DTYPES):
            nearly_singular(room, strategy, dtype, tally)
        return
    name, dtype = EVERY[number]
    never_a_silent_nan(name, dtype, tally)
    gradients_scale_with_their_cotangents(name, dtype, tally)
    if SUBJECTS[name].homogeneous:
        solutions_scale_with_their_problems(name, dtype, tally)
    if "LeastSquares" in name:
        operators_and_data_of_different_sizes(name, dtype, tally)
