"""What a problem is: a value of lists, numbers and words, and the legato problem it stands for.

A recipe has::

    shape       of one element's variable (a list of shapes for a tuple of variables)
    sizes       how large the elements of a batch are, or None without a batch
    theta       name → {"value": nested lists, "kind": ..., "batched": ...}; all but "fixed" learn
    terms       {"f": name, "args": {...}, "op": operator, "scale": ..., "shift": ..., "role": ...}
    form        "energy" (legato splits it), "Composite", "Saddle" or "blocks"
    algorithm, gradient, start, stop, loss, dtype, seed

A word among the arguments names an entry of theta. ``build`` gives the same problem anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import legato as lg
from legato import functions
from legato.operators import base as operator_algebra

Recipe = dict[str, Any]
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass
class Case:
    """A recipe as legato sees it, with θ as leaves."""

    theta: dict[str, Tensor]
    problem: Any
    algorithm: Any
    gradient: Any
    stop: lg.Stop
    x0: Any
    loss: Callable[[Any], Tensor]

    @property
    def learned(self) -> dict[str, Tensor]:
        return {name: t for name, t in self.theta.items() if t.requires_grad}


def tensors(recipe: Recipe, factor: float = 1.0) -> dict[str, Tensor]:
    """θ; ``factor`` gives that of a neighbouring problem."""
    dtype = DTYPES[recipe["dtype"]]
    made = {}
    for name, entry in recipe["theta"].items():
        tensor = torch.tensor(entry["value"], dtype=torch.float64).to(dtype)
        if entry["kind"] != "fixed":
            tensor = (factor * tensor).requires_grad_()
        made[name] = tensor
    return made


def build(recipe: Recipe) -> Case:
    theta = tensors(recipe)
    maker = Maker(recipe, theta)
    problem = maker.problem()
    algorithm = maker.algorithm(problem)
    return Case(
        theta, problem, algorithm, maker.gradient(), lg.Stop(**recipe["stop"]),
        maker.start(algorithm), maker.loss,
    )  # fmt: skip


class Maker:
    """Turns the words of a recipe into objects; equal words give one object."""

    def __init__(self, recipe: Recipe, theta: dict[str, Tensor]) -> None:
        self.recipe = recipe
        self.theta = theta
        self.dtype = DTYPES[recipe["dtype"]]
        self.geometries: dict[str, Any] = {}

    def value(self, entry: Any) -> Any:
        """A number, an axis, a tensor of θ, or what a nested word means."""
        if isinstance(entry, str):
            return self.theta[entry]
        if not isinstance(entry, dict):
            return tuple(map(tuple, entry)) if isinstance(entry, list) else entry
        if "op" in entry:
            return self.operator(entry)
        if "geometry" in entry:
            return self.geometry(entry)
        if "ints" in entry:
            return torch.tensor(entry["ints"])
        if "axes" in entry:
            return tuple(entry["axes"])
        return self.callable(entry)

    # --- operators, geometries --------------------------------------------------------------------

    def operator(self, spec: dict[str, Any]) -> Any:
        kind = spec["op"]
        if kind == "Stack":
            return lg.Stack(*map(self.operator, spec["operators"]))
        if kind == "Adjoint":
            return self.operator(spec["operator"]).T
        if kind == "Differences":
            dims = tuple(spec.get("dims") or (-2, -1))
            offsets = spec.get("offsets")
            offsets = None if offsets is None else tuple(map(tuple, offsets))
            return lg.Differences(dims, self.value(spec.get("weights")), offsets)
        known = {"Composition": operator_algebra.Composition, "Sum": operator_algebra.Sum}
        known["Scaled"] = operator_algebra.Scaled
        make = known.get(kind) or getattr(lg, kind)
        given = {k: v for k, v in spec.items() if k != "op"}
        return make(**{k: v if k == "boundary" else self.value(v) for k, v in given.items()})

    def geometry(self, spec: dict[str, Any] | None) -> Any:
        if spec is None:
            return lg.Euclidean()
        key = json.dumps(spec, sort_keys=True)
        if key not in self.geometries:
            kind = getattr(lg, spec["geometry"])
            if spec["geometry"] == "Product":
                self.geometries[key] = kind(*map(self.geometry, spec["blocks"]))
            else:
                values = {k: self.value(v) for k, v in spec.items() if k != "geometry"}
                self.geometries[key] = kind(**values)
        return self.geometries[key]

    # --- terms ------------------------------------------------------------------------------------

    def callable(self, spec: dict[str, Any]) -> Callable[[Any], Tensor]:
        if spec["callable"] == "joint least squares":
            A, B, b = (self.value(spec[k]) for k in ("A", "B", "b"))
            return lambda x: 0.5 * ((x[0] @ A.mT + x[1] @ B.mT - b) ** 2)
        weight, c = self.value(spec["weight"]), self.value(spec["c"])
        return {
            "pseudo Huber": lambda x: weight * torch.sqrt(1 + (x - c) ** 2),
            "softplus": lambda x: weight * F.softplus(x - c),
            "fourth power": lambda x: 0.25 * weight * (x - c) ** 4,
            "log-sum-exp": lambda x: weight * torch.logsumexp(x - c, -1, keepdim=True),
        }[spec["callable"]]

    def term(self, spec: dict[str, Any]) -> Any:
        if spec.get("blocks") is not None:
            f: Any = lg.Separable(*map(self.term, spec["blocks"]))
        else:
            name = "Smooth" if spec["f"] == "joint" else spec["f"]
            make = getattr(lg, name, None) or getattr(functions, name)
            f = make(**{name: self.value(v) for name, v in spec.get("args", {}).items()})
        if spec.get("smoothed") is not None:
            f = f.smoothed(self.value(spec["smoothed"]))
        if spec.get("conjugate"):
            f = f.conjugate()
        if spec.get("shift") is not None:
            f = f.shifted(self.value(spec["shift"]))
        if spec.get("scale") is not None:
            f = self.value(spec["scale"]) * f
        return f

    def composed(self, spec: dict[str, Any]) -> Any:
        f = self.term(spec)
        return f if spec.get("op") is None else f @ self.operator(spec["op"])

    def total(self, role: str) -> Any:
        found = [self.composed(t) for t in self.recipe["terms"] if t.get("role") == role]
        return reduce(lambda a, b: a + b, found) if found else lg.Zero()

    def problem(self) -> Any:
        form, terms = self.recipe["form"], self.recipe["terms"]
        if form == "energy":
            return reduce(lambda a, b: a + b, map(self.composed, terms))
        if form == "Composite":
            return lg.Composite(self.total("smooth"), self.total("nonsmooth"))
        if form == "blocks":
            return lg.Composite(self.total("smooth"), self._separable())
        (penalty,) = (t for t in terms if t.get("role") == "penalty")
        operator = lg.Identity() if penalty.get("op") is None else self.operator(penalty["op"])
        smooth, nonsmooth = self.total("smooth"), self.total("nonsmooth")
        return lg.Saddle(operator, self.term(penalty), smooth=smooth, nonsmooth=nonsmooth)

    def _separable(self) -> Any:
        blocks = []
        for number in range(len(self.recipe["shape"])):
            own = [self.composed(t) for t in self.recipe["terms"] if t.get("block") == number]
            blocks.append(reduce(lambda a, b: a + b, own) if own else lg.Zero())
        return lg.Separable(*blocks)

    # --- algorithm, gradient, start, loss ---------------------------------------------------------

    def algorithm(self, problem: Any) -> Any:
        spec = self.recipe["algorithm"]
        if spec is None:
            return None
        options = dict(spec)
        kind = options.pop("name")
        if kind == "Newton":
            return lg.Newton(**options)
        for name in ("geometry", "dual_geometry"):
            if name in options:
                options[name] = self.geometry(options[name])
        if kind == "ForwardBackward":
            if isinstance(options.get("inertia"), dict):
                options["inertia"] = lg.Nesterov(**options["inertia"])
            options["step_size"] = self._step(options.pop("step", None), problem)
            return lg.ForwardBackward(**options)
        steps = options.pop("steps", None)
        if steps is not None:
            K, L = self._norms(problem)
            options["tau"], options["sigma"] = steps / (K + L), steps / K
        if isinstance(options.get("balance"), str):
            options["balance"] = self.value(options["balance"])
        return lg.PrimalDual(**options)

    def _step(self, spec: Any, problem: Any) -> Any:
        if spec is None:
            return None
        if "backtracking" in spec:
            return lg.Backtracking(**spec["backtracking"])
        if "number" in spec:
            return spec["number"]
        smooth = problem.smooth if isinstance(problem, lg.Composite) else lg.split(problem).smooth
        L = smooth.lipschitz()
        step = spec["fraction"] / (float(torch.as_tensor(L).detach().amax()) or 1.0)
        if "vector" in spec:
            return step * torch.tensor(spec["vector"], dtype=self.dtype)
        return step

    def _norms(self, problem: Any) -> tuple[float, float]:
        split = problem if isinstance(problem, lg.Saddle) else lg.split(problem)
        if not isinstance(split, lg.Saddle):
            return 1.0, 0.0  # nothing stands behind an operator: PrimalDual refuses it
        with torch.no_grad():
            K = split.operator.norm(split.start())
            L = split.smooth.lipschitz()
        return float(K.amax()), float(torch.as_tensor(L).amax())

    def gradient(self) -> Any:
        return strategy(
            self.recipe["gradient"], [t for t in self.theta.values() if t.requires_grad]
        )

    def start(self, algorithm: Any) -> Any:
        spec = self.recipe.get("start")
        if spec is None:
            return None
        if "value" in spec:
            return _nested(spec["value"], self.dtype)
        other = Maker(self.recipe, tensors(self.recipe, spec["another"]))
        problem = other.problem()
        with torch.no_grad():
            before = lg.solve(problem, other.algorithm(problem), stop=lg.Stop(20))
        return before if spec["as"] == "solution" else before.state

    def loss(self, x: Any) -> Tensor:
        """Σ_e size_e (⟨c_e, x_e⟩ + ½‖x_e‖²), with one size for each element of a batch."""
        spec = self.recipe["loss"]
        slopes = spec["c"] if self.recipe["form"] == "blocks" else [spec["c"]]
        parts = []
        for part, slope in zip(x if isinstance(x, tuple) else (x,), slopes, strict=True):
            values = (torch.tensor(slope, dtype=self.dtype) + 0.5 * part) * part
            if self.recipe["sizes"] is not None:
                sizes = torch.tensor(spec["sizes"], dtype=self.dtype)
                values = values * sizes.reshape(-1, *[1] * (values.ndim - 1))
            parts.append(values.sum())
        return torch.stack(parts).sum()


def strategy(spec: dict[str, Any], learned: list[Tensor]) -> Any:
    options = {k: v for k, v in spec.items() if k not in ("name", "solver")}
    if spec["name"] == "Forward":
        return lg.Forward(*learned)
    if "solver" in spec:
        solver = dict(spec["solver"])
        options["solver"] = getattr(lg, solver.pop("name"))(**solver)
    return getattr(lg, spec["name"])(**options)


def _nested(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, dict):
        return tuple(torch.tensor(v, dtype=dtype) for v in value["tuple"])
    return torch.tensor(value, dtype=dtype)
