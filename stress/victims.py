"""Trainings and writers that promise to survive a kill, small enough to be killed a thousand times.

A victim works in a folder: it takes up what it finds there, and ends with numbers in it that do not
depend on how often it was interrupted.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import legato as lg
from legato import bilevel, optim
from legato._support.files import replacing, write_text


@dataclass(frozen=True)
class Victim:
    """What is killed: ``work(folder)``; ``numbers(folder)`` are its results, the same every time.

    ``whole`` raises where a file that was left behind is damaged. ``goes_on`` says that a file that
    cannot be written is warned about, and the work done all the same; ``study``, that it takes
    long; ``writes``, how many files it writes, about.
    """

    name: str
    work: Callable[[Path], None]
    numbers: Callable[[Path], Any]
    whole: Callable[[Path], None]
    goes_on: bool = False
    study: bool = False
    writes: int = 8


def _results(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


# --- fit ------------------------------------------------------------------------------------------

STEPS = 8


def _fit(folder: Path, *, make: Any, every: int, noise: float, inexact: Any = None) -> None:
    """A bilevel fit that saves itself and ends with its numbers in a file.

    Noise in the loss comes from torch's random numbers, whose state belongs to the checkpoint.
    """
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    b = torch.randn(12, generator=generator, dtype=torch.float64)
    theta = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)

    def loss(inner: bilevel.InnerSolver) -> Tensor:
        problem = lg.Composite(lg.LeastSquares(A[:8], b[:8]), lg.L1(F.softplus(theta)))
        gradient, stop = lg.Implicit(lg.GMRES(tol=1e-6)), lg.Stop(100, tol=1e-6)
        x = inner.solve(problem, lg.ForwardBackward(inertia=0.0), gradient=gradient, stop=stop).x
        noisy = x + noise * torch.randn(x.shape, dtype=x.dtype)
        return (A[8:] @ noisy - b[8:]).square().mean()

    checkpoint = bilevel.Checkpoint(folder / "fit.pt", every=every)
    found = bilevel.fit(loss, theta, make, STEPS, checkpoint=checkpoint, inexact=inexact)
    numbers = {"theta": theta.tolist(), "loss": found.history.loss}
    write_text(folder / "results.json", json.dumps(numbers))


def _whole_fit(folder: Path) -> None:
    if (folder / "fit.pt").exists():
        found = torch.load(folder / "fit.pt", weights_only=True)
        assert len(found["params"]) == 1
    if (folder / "results.json").exists():
        _results(folder)


def fits() -> list[Victim]:
    options: dict[str, dict[str, Any]] = {
        "Adam": {
            "make": functools.partial(torch.optim.Adam, lr=0.05),
            "every": 1,
            "noise": 0.01,
        },
        "Adam, every third": {
            "make": functools.partial(torch.optim.Adam, lr=0.05),
            "every": 3,
            "noise": 0.01,
        },
        "IPiano": {"make": optim.IPiano, "every": 1, "noise": 0.0},
        "IPiano, HOAG": {
            "make": optim.IPiano,
            "every": 2,
            "noise": 0.0,
            "inexact": bilevel.HOAG(),
        },
        "NonlinearCG": {"make": optim.NonlinearCG, "every": 1, "noise": 0.0},
        "HeavyBall": {
            "make": functools.partial(optim.HeavyBall, lr=0.1),
            "every": 1,
            "noise": 0.0,
        },
        "SGD with momentum": {
            "make": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
            "every": 1,
            "noise": 0.01,
        },
    }
    return [
        Victim(f"fit, {name}", functools.partial(_fit, **more), _results, _whole_fit, goes_on=True)
        for name, more in options.items()
    ]


# --- a loop of the user's -------------------------------------------------------------------------


def _loop(folder: Path, *, make: Callable[[list[Tensor]], Any]) -> None:
    """Steps of an optimiser whose state is saved after each of them, as torch's users do."""
    A = torch.randn(8, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    theta = torch.ones(4, dtype=torch.float64, requires_grad=True)
    optimizer = make([theta])
    losses: list[float] = []
    path = folder / "loop.pt"
    if path.exists():
        saved = torch.load(path, weights_only=True)
        with torch.no_grad():
            theta.copy_(saved["theta"])
        optimizer.load_state_dict(saved["optimizer"])
        losses = saved["losses"]

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = (A @ theta).cosh().log().sum() + 0.1 * (theta - 2).square().sum()
        value.backward()
        return value

    while len(losses) < 25:
        losses.append(float(optimizer.step(closure)))
        content = {"theta": theta.detach(), "optimizer": optimizer.state_dict(), "losses": losses}
        with replacing(path) as temporary:
            torch.save(content, temporary)
    write_text(folder / "results.json", json.dumps({"theta": theta.tolist(), "losses": losses}))


def _whole_loop(folder: Path) -> None:
    if (folder / "loop.pt").exists():
        assert torch.load(folder / "loop.pt", weights_only=True)["losses"]


def loops() -> list[Victim]:
    options: dict[str, Callable[[list[Tensor]], Any]] = {
        "IPiano": lambda p: optim.IPiano(p),
        "VariableMomentum": lambda p: optim.IPiano(p, optim.VariableMomentum()),
        "NonConvexStep": lambda p: optim.IPiano(p, optim.NonConvexStep()),
        "NonlinearCG": lambda p: optim.NonlinearCG(p, optim.HagerZhang()),
        "HeavyBall": lambda p: optim.HeavyBall(p, 0.05),
        "ProximalGradient": lambda p: optim.ProximalGradient(p),
    }
    return [
        Victim(f"optimiser, {name}", functools.partial(_loop, make=make), _results, _whole_loop)
        for name, make in options.items()
    ]


# --- files ----------------------------------------------------------------------------------------


def _write_many(folder: Path) -> None:
    """One file replaced over and over; every version carries its own checksum."""
    path = folder / "results.json"
    start = _version(path) if path.exists() else 0
    for number in range(start + 1, 41):
        body = f"{number} " * (200 * number)
        digest = hashlib.sha256(body.encode()).hexdigest()
        write_text(path, json.dumps({"number": number, "body": body, "digest": digest}))


def _version(path: Path) -> int:
    found = json.loads(path.read_text())
    assert hashlib.sha256(found["body"].encode()).hexdigest() == found["digest"]
    return int(found["number"])


def _whole_file(folder: Path) -> None:
    if (folder / "results.json").exists():
        _version(folder / "results.json")


def writers() -> list[Victim]:
    return [Victim("write_text", _write_many, _results, _whole_file)]


# --- studies --------------------------------------------------------------------------------------


def _without_times(found: Any) -> Any:
    """Results less what the clock and the machine say."""
    apart = ("seconds", "date", "commit", "versions", "device")
    if isinstance(found, dict):
        return {k: _without_times(v) for k, v in found.items() if k not in apart}
    return [_without_times(v) for v in found] if isinstance(found, list) else found


def _denoise(folder: Path) -> None:
    from legato.studies.denoise.images import drawn_sets
    from legato.studies.denoise.settings import ALL, TableSettings
    from legato.studies.denoise.table import is_complete, run_part
    from legato.studies.denoise.training import Recipe

    if is_complete(folder, ALL):
        return
    settings = TableSettings(sigmas=(25.0,))
    level = replace(
        settings.level, filters=3, size=3, iterations=3, recipe=Recipe(steps=6, batch=2, patch=8)
    )
    torch.manual_seed(0)
    run_part(ALL, replace(settings, level=level), drawn_sets(2, 1), folder, torch.device("cpu"))


def _denoised(folder: Path) -> Any:
    from safetensors.torch import load_file

    tensors = load_file(folder / "all" / "filters.safetensors")
    found = _without_times(json.loads((folder / "all" / "results.json").read_text()))
    return {"results": found, "tensors": {k: v.tolist() for k, v in tensors.items()}}


def _whole_denoise(folder: Path) -> None:
    from safetensors.torch import load_file

    for path in folder.rglob("*.safetensors"):
        load_file(path)
    for path in folder.rglob("*.json"):
        json.loads(path.read_text())


def _segment(folder: Path) -> None:
    from legato.studies.segment.data import SyntheticScenes
    from legato.studies.segment.model import build, save_model
    from legato.studies.segment.settings import LayerSettings, ModelSettings, Recipe, Weights
    from legato.studies.segment.training import train

    scenes = SyntheticScenes(4, size=(32, 32))
    layer = LayerSettings(weights=Weights.LEARNED, iterations=3)
    settings = ModelSettings(tuple(scenes.class_names), layer=layer)
    recipe = Recipe(epochs=3, batch=2, accelerator="cpu")
    torch.manual_seed(0)
    model = build(settings)
    train(model, settings, recipe, scenes, folder)
    save_model(model, settings, folder / "model.safetensors")
    write_text(folder / "results.json", json.dumps({"done": True}))


def _segmented(folder: Path) -> Any:
    from safetensors.torch import load_file

    from legato.studies.segment.epochs import read_log

    rows = [
        {k: v for k, v in row.items() if k != "seconds"} for row in read_log(folder / "log.csv")
    ]
    tensors = load_file(folder / "model.safetensors")
    return {"log": rows, "tensors": {k: v.tolist() for k, v in tensors.items()}}


def _whole_segment(folder: Path) -> None:
    from safetensors.torch import load_file

    if (folder / "last.ckpt").exists():
        assert torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
    for path in folder.glob("*.safetensors"):
        load_file(path)


def studies() -> list[Victim]:
    return [
        Victim("denoise", _denoise, _denoised, _whole_denoise, study=True, writes=2),
        Victim("segment", _segment, _segmented, _whole_segment, goes_on=True, study=True, writes=2),
    ]


def victims() -> list[Victim]:
    """Everything that promises to survive."""
    return [*fits(), *loops(), *writers(), *studies()]
