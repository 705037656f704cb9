"""A recipe as a short program that a person can paste."""

from __future__ import annotations

import json
import math
from typing import Any

from oracle.recipes import Recipe, build


def program(recipe: Recipe) -> str:
    """Python that builds, solves and differentiates the recipe's problem."""
    return _Writer(recipe).text()


class _Writer:
    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.learned = [n for n, e in recipe["theta"].items() if e["kind"] != "fixed"]
        self.lines = [
            "import math",
            "import torch",
            "import legato as lg",
            "from legato import functions",
        ]
        self.lines.append("from legato.operators import base as operators")
        self.geometries: dict[str, str] = {}

    def text(self) -> str:
        recipe = self.recipe
        dtype = f"dtype=torch.{recipe['dtype']}"
        for name, entry in recipe["theta"].items():
            learned = ", requires_grad=True" if entry["kind"] != "fixed" else ""
            self.lines.append(f"{name} = torch.tensor({_plain(entry['value'])}, {dtype}{learned})")
        problem = self.problem()
        algorithm = self.algorithm()
        self.lines.append(f"problem = {problem}")
        stop = ", ".join(f"{k}={v}" for k, v in recipe["stop"].items())
        start = self.start(problem, algorithm, dtype)
        self.lines.append(
            f"solution = lg.solve(problem, {algorithm}, {start}, "
            f"gradient={self.gradient()}, stop=lg.Stop({stop}))"
        )
        self.loss(dtype)
        self.lines.append("print(solution, solution.x)")
        if self.learned:
            names = ", ".join(self.learned)
            self.lines.append(f"print(torch.autograd.grad(loss, [{names}], allow_unused=True))")
            self.lines.append("print(solution.backward)")
        text = "\n".join(self.lines)
        for unused in (
            "import math",
            "from legato import functions",
            "from legato.operators import base as operators",
        ):
            if text.count(unused.split()[-1] + ".") == 0:
                text = text.replace(unused + "\n", "")
        return text

    def value(self, entry: Any) -> str:
        if isinstance(entry, str):
            return entry
        if isinstance(entry, dict):
            if "op" in entry:
                return self.operator(entry)
            if "geometry" in entry:
                return self.geometry(entry)
            if "ints" in entry:
                return f"torch.tensor({entry['ints']})"
            if "axes" in entry:
                return repr(tuple(entry["axes"]))
            return self.callable(entry)
        return _plain(entry)

    def operator(self, spec: dict[str, Any]) -> str:
        kind = spec["op"]
        if kind == "Stack":
            return f"lg.Stack({', '.join(map(self.operator, spec['operators']))})"
        if kind == "Adjoint":
            return f"{self.operator(spec['operator'])}.T"
        home = "operators" if kind in ("Composition", "Sum", "Scaled") else "lg"
        given = []
        for key, value in spec.items():
            if key == "op" or value is None:
                continue
            if key in ("dims", "offsets"):
                text = repr(tuple(tuple(v) if isinstance(v, list) else v for v in value))
            else:
                text = repr(value) if key == "boundary" else self.value(value)
            given.append(f"{key}={text}")
        return f"{home}.{kind}({', '.join(given)})"

    def geometry(self, spec: dict[str, Any] | None) -> str:
        if spec is None:
            return "lg.Euclidean()"
        key = json.dumps(spec, sort_keys=True)
        if key not in self.geometries:
            if spec["geometry"] == "Product":
                made = f"lg.Product({', '.join(map(self.geometry, spec['blocks']))})"
            else:
                ends = ", ".join(self.value(v) for k, v in spec.items() if k != "geometry")
                made = f"lg.{spec['geometry']}({ends})"
            name = f"psi{len(self.geometries)}"
            self.lines.append(f"{name} = {made}")
            self.geometries[key] = name
        return self.geometries[key]

    def callable(self, spec: dict[str, Any]) -> str:
        if spec["callable"] == "joint least squares":
            A, B, b = spec["A"], spec["B"], spec["b"]
            return f"lambda x: 0.5 * (x[0] @ {A}.mT + x[1] @ {B}.mT - {b}) ** 2"
        w, c = self.value(spec["weight"]), self.value(spec["c"])
        return {
            "pseudo Huber": f"lambda x: {w} * torch.sqrt(1 + (x - {c}) ** 2)",
            "softplus": f"lambda x: {w} * torch.nn.functional.softplus(x - {c})",
            "fourth power": f"lambda x: 0.25 * {w} * (x - {c}) ** 4",
            "log-sum-exp": f"lambda x: {w} * torch.logsumexp(x - {c}, -1, keepdim=True)",
        }[spec["callable"]]

    def term(self, spec: dict[str, Any]) -> str:
        if spec.get("blocks") is not None:
            f = f"lg.Separable({', '.join(map(self.term, spec['blocks']))})"
        else:
            name = "Smooth" if spec["f"] == "joint" else spec["f"]
            home = "functions" if name in ("LogBarrier", "SmoothAbsolute") else "lg"
            args = [f"{k}={self.value(v)}" for k, v in spec.get("args", {}).items()]
            f = f"{home}.{name}({', '.join(args)})"
        if spec.get("smoothed") is not None:
            f += f".smoothed({self.value(spec['smoothed'])})"
        if spec.get("conjugate"):
            f += ".conjugate()"
        if spec.get("shift") is not None:
            f += f".shifted({self.value(spec['shift'])})"
        if spec.get("scale") is not None:
            f = f"{self.value(spec['scale'])} * {f}"
        return f

    def composed(self, spec: dict[str, Any]) -> str:
        f = self.term(spec)
        return f if spec.get("op") is None else f"({f}) @ {self.operator(spec['op'])}"

    def total(self, role: str) -> str:
        found = [self.composed(t) for t in self.recipe["terms"] if t.get("role") == role]
        return " + ".join(found) or "lg.Zero()"

    def problem(self) -> str:
        form, terms = self.recipe["form"], self.recipe["terms"]
        if form == "energy":
            return " + ".join(map(self.composed, terms))
        if form == "Composite":
            return f"lg.Composite({self.total('smooth')}, {self.total('nonsmooth')})"
        if form == "blocks":
            blocks = []
            for number in range(len(self.recipe["shape"])):
                own = [self.composed(t) for t in terms if t.get("block") == number]
                blocks.append(" + ".join(own) or "lg.Zero()")
            return f"lg.Composite({self.total('smooth')}, lg.Separable({', '.join(blocks)}))"
        (penalty,) = (t for t in terms if t.get("role") == "penalty")
        operator = "lg.Identity()" if penalty.get("op") is None else self.operator(penalty["op"])
        return (
            f"lg.Saddle({operator}, {self.term(penalty)}, smooth={self.total('smooth')}, "
            f"nonsmooth={self.total('nonsmooth')})"
        )

    def algorithm(self) -> str:
        spec = self.recipe["algorithm"]
        if spec is None:
            return "None"
        options = {k: v for k, v in spec.items() if k != "name"}
        given = []
        for name in ("geometry", "dual_geometry"):
            if options.get(name) is not None:
                given.append(f"{name}={self.geometry(options.pop(name))}")
        made = build(self.recipe).algorithm
        if options.pop("step", None) is not None:
            given.append(f"step_size={_plain(made.step_size)}")
        if options.pop("steps", None) is not None:
            given.append(f"tau={made.tau!r}, sigma={made.sigma!r}")
        if isinstance(options.get("inertia"), dict):
            given.append(f"inertia=lg.Nesterov(restart={options.pop('inertia')['restart']})")
        given += [f"{k}={v}" for k, v in options.items()]
        return f"lg.{spec['name']}({', '.join(given)})"

    def gradient(self) -> str:
        spec = self.recipe["gradient"]
        if spec["name"] == "Forward":
            return f"lg.Forward({', '.join(self.learned)})"
        given = [f"{k}={v!r}" for k, v in spec.items() if k not in ("name", "solver")]
        if "solver" in spec:
            options = ", ".join(f"{k}={v}" for k, v in spec["solver"].items() if k != "name")
            given.append(f"lg.{spec['solver']['name']}({options})")
        return f"lg.{spec['name']}({', '.join(given)})"

    def start(self, problem: str, algorithm: str, dtype: str) -> str:
        spec = self.recipe.get("start")
        if spec is None:
            return "None"
        if "value" in spec:
            return f"torch.tensor({_plain(spec['value'])}, {dtype})"
        self.lines.append("with torch.no_grad():")
        for name in self.learned:
            self.lines.append(f"    {name}.mul_({spec['another']})  # a neighbouring problem first")
        self.lines.append(f"    before = lg.solve({problem}, {algorithm}, stop=lg.Stop(20))")
        for name in self.learned:
            self.lines.append(f"    {name}.div_({spec['another']})")
        return "before" if spec["as"] == "solution" else "before.state"

    def loss(self, dtype: str) -> None:
        spec, sizes = self.recipe["loss"], self.recipe["sizes"]
        if self.recipe["form"] == "blocks":
            parts = []
            for i, c in enumerate(spec["c"]):
                x = f"solution.x[{i}]"
                parts.append(f"((torch.tensor({_plain(c)}, {dtype}) + 0.5 * {x}) * {x}).sum()")
            self.lines.append(f"loss = {' + '.join(parts)}")
            return
        self.lines.append(f"c = torch.tensor({_plain(spec['c'])}, {dtype})")
        if sizes is None or set(spec["sizes"]) == {1.0}:
            self.lines.append("loss = ((c + 0.5 * solution.x) * solution.x).sum()")
            return
        ones = ", 1" * len(self.recipe["shape"])
        self.lines.append(f"size = torch.tensor({spec['sizes']}, {dtype}).reshape(-1{ones})")
        self.lines.append("loss = (size * (c + 0.5 * solution.x) * solution.x).sum()")


def _plain(value: Any) -> str:
    if hasattr(value, "tolist"):
        return f"torch.tensor({value.tolist()}, dtype={value.dtype})"
    if isinstance(value, float) and math.isinf(value):
        return "math.inf" if value > 0 else "-math.inf"
    text = repr(value)
    return f"lg.{text}" if text.startswith("Backtracking") else text
