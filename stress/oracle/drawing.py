"""Random recipes from the whole algebra of terms, operators, geometries, algorithms, strategies.

``draw(seed)`` is one recipe; ``Quotas`` draws the rarest next. All numbers have three digits, so
that a recipe can be read.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from oracle.recipes import Recipe, features

Array = Any


_TELLS_SHAPE = ("LeastSquares", "Quadratic", "Logistic", "SquaredDistance", "Linear")
"""Terms whose data have the shape of the variable, so that no start is needed."""


def three_digits(values: Any) -> Any:
    array = np.asarray(values, float)
    return (
        np.vectorize(lambda v: float(f"{v:.3g}"))(array).tolist() if array.size else array.tolist()
    )


class Draw:
    """One recipe in the making."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.theta: dict[str, Any] = {}
        self.ordered: list[list[str]] = []
        self.sizes = self._sizes()
        shapes: list[list[int]] = [[3], [4], [5], [6], [8], [2, 3], [3, 2], [2, 4]]
        self.shape = self.choose(shapes, [2, 3, 3, 2, 1, 1, 1, 1])

    # --- chance -----------------------------------------------------------------------------------

    def choose(self, options: Any, weights: Any = None) -> Any:
        p = None if weights is None else np.asarray(weights, float) / sum(weights)
        return options[int(self.rng.choice(len(options), p=p))]

    def happens(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def _sizes(self) -> list[float] | None:
        if self.happens(0.55):
            return None
        count = self.choose([1, 2, 3], [1, 3, 1])
        if self.happens(0.5):
            return [1.0] * count
        return [float(self.choose([1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6])) for _ in range(count)]

    # --- numbers ----------------------------------------------------------------------------------

    def tensor(
        self, name: str, shape: Any, kind: str = "free", degree: int = 0, batched: bool | None = None,
        values: Any = None,
    ) -> str:  # fmt: skip
        """A new entry of θ. ``degree``: how it grows with the size of an element."""
        count = 0 if self.sizes is None else len(self.sizes)
        if batched is None:
            batched = count > 0 and (degree > 0 or self.happens(0.3))
        full = (count, *shape) if batched else tuple(shape)
        if values is not None:
            array = np.broadcast_to(values, full).copy()
        elif kind == "free":
            array = self.rng.normal(size=full)
        else:
            array = self.rng.uniform(0.3, 1.0, size=full)
        if batched and degree:
            sizes = np.asarray(self.sizes).reshape(-1, *[1] * len(shape))
            array = array * sizes**degree
        label = f"{name}{len(self.theta)}"
        self.theta[label] = {"value": three_digits(array), "kind": kind, "batched": bool(batched)}
        return label

    def weight(
        self, name: str, shape: Any, scale: float, degree: int = 1, zeros: bool = True
    ) -> Any:
        """A number or a tensor ≥ 0: one for all entries or one each, sometimes with zeros."""
        alike = self.sizes is None or len(set(self.sizes)) == 1 == self.sizes[0]
        if self.happens(0.15) and alike:
            return float(f"{scale * self.rng.uniform(0.3, 1):.3g}")
        own = self.choose([(), (1,) * len(shape), tuple(shape)], [2, 1, 2])
        if self.sizes is not None and own == ():
            own = (1,) * len(shape)
        count = 0 if self.sizes is None else len(self.sizes)
        batched = count > 0 and (degree > 0 or self.happens(0.3))
        full = (count, *own) if batched else own
        values = scale * self.rng.uniform(0.3, 1.0, size=full)
        if zeros and self.happens(0.12):
            values = np.where(self.rng.random(full) < 0.4, 0.0, values)
        return self.tensor(name, own, "nonnegative", degree, batched, values)

    def matrix(self, name: str, rows: int, columns: int, batched: bool | None = None) -> str:
        """Of norm about 1 and a condition number that is mostly small."""
        if batched is None:
            batched = self.sizes is not None and self.happens(0.15)
        condition = self.choose([1.5, 3.0, 10.0, 100.0], [3, 4, 2, 0.5])
        count = len(self.sizes or [1]) if batched else 1
        made = []
        for _ in range(count):
            left, _, right = np.linalg.svd(
                self.rng.normal(size=(rows, columns)), full_matrices=False
            )
            values = np.logspace(0, -np.log10(condition), min(rows, columns))
            made.append(left * values @ right)
        values = np.stack(made) if batched else made[0]
        return self.tensor(name, (rows, columns), batched=batched, values=values)

    # --- operators --------------------------------------------------------------------------------

    def operator(self, shape: list[int], depth: int = 0) -> tuple[dict[str, Any], list[int]]:
        """An operator on this shape and the shape of its image."""
        kinds = ["Dense", "Differences", "Diagonal", "Identity", "Adjoint"]
        weights = [4, 3, 1, 0.5, 0.7]
        if len(shape) > 1:
            kinds.append("Convolution")
            weights.append(3)
        if depth == 0:
            kinds += ["Composition", "Sum", "Scaled"]
            weights += [1, 1, 1]
        kind = self.choose(kinds, weights)
        n = shape[-1]
        if kind == "Identity":
            return {"op": "Identity"}, shape
        if kind == "Dense":
            rows = int(self.choose([max(1, n - 2), n, n + 2]))
            return {"op": "Dense", "matrix": self.matrix("K", rows, n)}, [*shape[:-1], rows]
        if kind == "Adjoint":
            rows = int(self.choose([n, n + 1]))
            inner = {"op": "Dense", "matrix": self.matrix("K", n, rows)}
            source = [*shape[:-1], rows]
            return {"op": "Adjoint", "operator": inner, "source": source}, source
        if kind == "Diagonal":
            return {"op": "Diagonal", "entries": self.tensor("d", (n,), batched=False)}, shape
        if kind == "Differences":
            return self._differences(shape)
        if kind == "Convolution":
            outputs, size = int(self.choose([1, 2])), int(self.choose([2, 3]))
            kernel = self.tensor("k", (outputs, shape[-2], size), batched=False)
            boundary = self.choose(["zero", "circular", "mirror"])
            if n < size:
                boundary = "zero"
            spec = {"op": "Convolution", "kernel": kernel, "boundary": boundary}
            return spec, [*shape[:-2], outputs, n]
        if kind == "Scaled":
            inner, out = self.operator(shape, 1)
            return {
                "op": "Scaled",
                "operator": inner,
                "scale": self.tensor("s", (), batched=False),
            }, out
        if kind == "Composition":
            inner, between = self.operator(shape, 1)
            outer, out = self.operator(between, 1)
            return {"op": "Composition", "outer": outer, "inner": inner}, out
        first = {"op": "Dense", "matrix": self.matrix("K", n, n)}
        second = self.choose(
            [{"op": "Identity"}, {"op": "Dense", "matrix": self.matrix("K", n, n)}]
        )
        return {"op": "Sum", "first": first, "second": second}, shape

    def _differences(self, shape: list[int]) -> tuple[dict[str, Any], list[int]]:
        spec: dict[str, Any] = {"op": "Differences"}
        if self.happens(0.2) and shape[-1] > 2:
            spec["offsets"] = [[1], [2]]
            out = [*shape[:-1], 2, shape[-1]]
        elif len(shape) > 1 and self.happens(0.6):
            spec["dims"] = [-2, -1]
            out = [*shape[:-2], 2, *shape[-2:]]
        else:
            spec["dims"] = [-1]
            out = [*shape[:-1], 1, shape[-1]]
        if self.happens(0.4):
            own = self.choose([(), tuple(out)])
            spec["weights"] = self.tensor("w", own, "nonnegative", batched=False)
        return spec, out

    # --- terms ------------------------------------------------------------------------------------

    def core(self, shape: list[int], strength: float = 0.3, kinds: Any = None) -> dict[str, Any]:
        """A term with a prox in the Euclidean geometry."""
        names = {
            "L1": 3, "AsymmetricL1": 2, "GroupL1": 3, "NonNegative": 2, "Box": 2, "LInfBall": 1.5,
            "Simplex": 2, "L2Ball": 2, "Zero": 1, "Equality": 0.4, "conjugate": 2,
        }  # fmt: skip
        if kinds is not None:
            names = {k: v for k, v in names.items() if k in kinds}
        name = self.choose(list(names), list(names.values()))
        term = (
            self._conjugate(shape, strength)
            if name == "conjugate"
            else self._named(name, shape, strength)
        )
        if self.happens(0.12) and term["f"] not in ("Zero", "Equality"):
            term["shift"] = self.tensor("c", tuple(shape), degree=1)
        if self.happens(0.15) and term["f"] != "Zero":
            term["scale"] = self.tensor("t", (), "positive", batched=False)
        return term

    def _named(self, name: str, shape: list[int], strength: float) -> dict[str, Any]:
        args: dict[str, Any] = {}
        if name == "L1":
            args["weight"] = self.weight("w", shape, strength)
        elif name == "AsymmetricL1":
            args = self._ends(shape, strength, infinite=0.15)
        elif name == "Box":
            args = self._ends(shape, 0.8, infinite=0.15, equal=0.1)
        elif name == "LInfBall":
            args["radius"] = self.weight("r", shape, 0.8, zeros=False)
        elif name in ("GroupL1", "L2Ball"):
            args = self._grouped(name, shape, strength if name == "GroupL1" else 0.8)
        elif name == "Simplex" and len(shape) > 1 and self.happens(0.4):
            args["dim"] = -2
        elif name == "Equality":
            args["b"] = self.tensor("b", tuple(shape), degree=1)
        return {"f": name, "args": args}

    def _grouped(self, name: str, shape: list[int], scale: float) -> dict[str, Any]:
        word = "weight" if name == "GroupL1" else "radius"
        dim = -2 if len(shape) > 1 and self.happens(0.4) else -1
        if name == "GroupL1" and self.happens(0.4):
            labels = (self.rng.permutation(shape[-1]) % 2).tolist()
            own = (*[1] * (len(shape) - 1), 2)
            batched = self.sizes is not None
            values = scale * self.rng.uniform(
                0.3, 1, ((len(self.sizes or []), *own) if batched else own)
            )
            weight = self.tensor("w", own, "nonnegative", 1, batched, values)
            return {"weight": weight, "groups": {"ints": labels}}
        norms = [1 if axis == dim % len(shape) else size for axis, size in enumerate(shape)]
        args: dict[str, Any] = {word: self.weight("w", norms, scale, zeros=name == "GroupL1")}
        return {**args, "dim": dim} if dim != -1 else args

    def _ends(
        self, shape: list[int], scale: float, infinite: float, equal: float = 0.0
    ) -> dict[str, Any]:
        alike = self.sizes is None or set(self.sizes) == {1.0}
        if self.happens(infinite):
            end = float(f"{scale * self.rng.uniform(0.3, 1):.3g}") if alike else 0.0
            return {"lo": -np.inf, "hi": end} if self.happens(0.5) else {"lo": -end, "hi": np.inf}
        own = tuple(shape) if self.happens(0.6) else (1,) * len(shape)
        count = 0 if self.sizes is None else len(self.sizes)
        full = (count, *own) if count else own
        lo, width = (
            -scale * self.rng.uniform(-0.2, 1, full),
            scale * self.rng.uniform(0.3, 1.5, full),
        )
        if self.happens(equal):
            width = np.where(self.rng.random(full) < 0.4, 0.0, width)
        lo = np.asarray(three_digits(lo))
        ends = [self.tensor("lo", own, "free", 1, count > 0, lo)]
        ends.append(
            self.tensor("hi", own, "free", 1, count > 0, lo + np.asarray(three_digits(width)))
        )
        self.ordered.append(ends)
        return {"lo": ends[0], "hi": ends[1]}

    def _conjugate(self, shape: list[int], strength: float) -> dict[str, Any]:
        """The conjugate of a term; those with names of their own as well as those without."""
        kinds = [
            "L1",
            "GroupL1",
            "L2Ball",
            "Simplex",
            "Box",
            "NonNegative",
            "LInfBall",
            "AsymmetricL1",
        ]
        name = self.choose(kinds, [1, 2, 1, 2, 1, 0.5, 1, 1])
        term = self._named(name, shape, strength)
        return {**term, "conjugate": True}

    def smooth(self, shape: list[int]) -> dict[str, Any]:
        names = {
            "LeastSquares": 5, "Quadratic": 2, "Logistic": 1.5, "Smooth": 2, "SquaredDistance": 2,
            "SquaredNorm": 1, "SmoothAbsolute": 1, "Linear": 1, "composed": 2, "L1 smoothed": 0.5,
        }  # fmt: skip
        return self.smooth_named(self.choose(list(names), list(names.values())), shape)

    def smooth_named(self, name: str, shape: list[int]) -> dict[str, Any]:
        n = shape[-1]
        if name == "LeastSquares":
            operator, out = self.operator(shape)
            args: dict[str, Any] = {
                "operator": operator,
                "b": self.tensor("b", tuple(out), degree=1),
            }
            if self.happens(0.3):
                args["weight"] = self.weight("v", out, 1.0, degree=0, zeros=False)
            term = {"f": name, "args": args}
        elif name == "Quadratic":
            root = np.asarray(self.theta.pop(self.matrix("Q", n, n, batched=False))["value"])
            Q = self.tensor("Q", (n, n), "symmetric", batched=False, values=root.T @ root)
            entry = np.asarray(self.theta[Q]["value"])
            self.theta[Q]["value"] = np.round((entry + entry.T) / 2, 6).tolist()
            c = self.tensor("c", tuple(shape), degree=1)
            term = {"f": name, "args": {"Q": {"op": "Dense", "matrix": Q}, "c": c}}
        elif name == "Logistic":
            matrix = self.matrix("A", n + 2, n)
            labels = np.sign(self.rng.normal(size=(*shape[:-1], n + 2)))
            b = self.tensor("y", labels.shape, "fixed", batched=False, values=labels)
            term = {"f": name, "args": {"operator": {"op": "Dense", "matrix": matrix}, "b": b}}
        elif name == "Smooth":
            term = self._callable(shape)
        elif name == "SquaredDistance":
            term = {"f": name, "args": {"y": self.tensor("y", tuple(shape), degree=1)}}
            if self.happens(0.5):
                term["args"]["weight"] = self.weight("v", shape, 1.0, degree=0, zeros=False)
        elif name == "SquaredNorm":
            term = {
                "f": name,
                "args": {"weight": self.weight("e", shape, 1.0, degree=0, zeros=False)},
            }
        elif name == "SmoothAbsolute":
            weight = self.weight("w", shape, 0.3, zeros=False)
            term = {"f": name, "args": {"weight": weight, "mu": self._mu()}}
        elif name == "L1 smoothed":
            term = {"f": "L1", "args": {"weight": self.weight("w", shape, 0.3, zeros=False)}}
            term["smoothed"] = self._mu()
        elif name == "Linear":
            term = {"f": name, "args": {"c": self.tensor("c", tuple(shape), degree=1)}}
        else:
            operator, out = self.operator(shape)
            term = {"f": "SquaredDistance", "args": {"y": self.tensor("y", tuple(out), degree=1)}}
            term["op"] = operator
        if self.happens(0.15):
            term["scale"] = self.tensor("t", (), "positive", batched=False)
        if self.happens(0.08) and term["f"] not in ("Linear", "SquaredNorm") and "op" not in term:
            term["shift"] = self.tensor("c", tuple(shape), degree=1)
        return term

    def _mu(self) -> Any:
        """How round a corner is, in units of the element."""
        own = (1,) * len(self.shape) if self.sizes is not None else ()
        return self.tensor("m", own, "positive", 1)

    def _callable(self, shape: list[int]) -> dict[str, Any]:
        kind = self.choose(["pseudo Huber", "softplus", "fourth power", "log-sum-exp"])
        weight = self.tensor("w", (), "positive", batched=False)
        c = self.tensor("c", tuple(shape), degree=1)
        args: dict[str, Any] = {"callable": {"callable": kind, "weight": weight, "c": c}}
        if kind != "fourth power":
            args["constant"] = float(1.0001 * self.theta[weight]["value"])
        args["coupled"] = 1
        return {"f": "Smooth", "args": args}

    def ridge(self, shape: list[int]) -> dict[str, Any]:
        """What makes a minimiser unique."""
        term = self.smooth_named(self.choose(["SquaredNorm", "SquaredDistance"]), shape)
        term.pop("shift", None)
        return term

    # --- algorithms -------------------------------------------------------------------------------

    def forward_backward(self, geometry: Any = None, derivable: bool = True) -> dict[str, Any]:
        spec: dict[str, Any] = {"name": "ForwardBackward"}
        if geometry is not None:
            spec["geometry"] = geometry
        if not derivable:
            spec["step"] = {
                "backtracking": self.choose([{}, {"grow": 2.0}, {"initial": 0.1, "grow": 1.5}])
            }
            return spec
        kind = self.choose(["plain", "fraction", "vector", "backtracking", "inertia", "nesterov"],
                           [3, 1, 0.7, 1, 1, 2])  # fmt: skip
        if kind == "fraction":
            spec["step"] = {"fraction": self.choose([0.5, 1.0, 1.7])}
        elif kind == "vector" and geometry is None:
            vector = self.rng.uniform(0.5, 1.0, size=self.shape)
            spec["step"] = {"fraction": 1.0, "vector": three_digits(vector)}
        elif kind == "backtracking":
            spec["step"] = {"backtracking": self.choose([{}, {"grow": 2.0}])}
        elif kind == "inertia":
            spec["inertia"] = self.choose([0.2, 0.4])
        elif kind == "nesterov":
            spec["inertia"] = {"restart": self.choose([True, 50, False], [3, 1, 1])}
        return spec

    def primal_dual(self, geometry: Any = None, dual: Any = None) -> dict[str, Any]:
        spec: dict[str, Any] = {"name": "PrimalDual"}
        if geometry is not None:
            spec["geometry"] = geometry
        if dual is not None:
            spec["dual_geometry"] = dual
        kind = self.choose(
            ["plain", "steps", "balance", "precondition", "average"], [3, 1, 1.5, 1.5, 0.4]
        )
        if kind == "steps":
            spec["steps"] = self.choose([0.5, 0.99])
        elif kind == "balance":
            spec["balance"] = self.choose([0.5, 3.0])
        elif kind == "precondition":
            spec["precondition"] = True
        elif kind == "average":
            spec["average"] = True
        return spec

    def gradient(self, algorithm: dict[str, Any] | None) -> dict[str, Any]:
        averaged = bool((algorithm or {}).get("average"))
        unrolled = [
            {"name": "Unroll"}, {"name": "Unroll", "checkpoint": "sqrt"}, {"name": "Unroll", "last": 200},
            {"name": "Unroll", "tol": 1e-6}, {"name": "Forward"},
        ]  # fmt: skip
        if averaged:
            return self.choose(unrolled[:2])
        fixed: list[dict[str, Any]] = [
            {"name": "Implicit", "solver": {"name": s}}
            for s in ("GMRES", "BiCGStab", "CG", "Neumann", "Direct")
        ]
        fixed += [{"name": "FixedPoint"}, {"name": "FixedPoint", "terms": 500}, {"name": "OneStep"},
                  {"name": "Piggyback"}]  # fmt: skip
        primal_dual = (algorithm or {}).get("name") == "PrimalDual"
        weights = [4, 2, 0.3 if primal_dual else 2, 1, 2, 1, 2, 0.5, 1.5 if primal_dual else 0.1]
        return self.choose(fixed + unrolled, [*weights, 1, 0.7, 0.7, 0.7, 0.4])

    # --- whole problems ---------------------------------------------------------------------------

    def recipe(self) -> Recipe:
        form = self.choose([self._composite, self._bregman, self._saddle, self._newton, self._blocks],
                           [4, 2.2, 4, 0.8, 0.6])  # fmt: skip
        made = form()
        made.setdefault("shape", self.shape)
        if not any(entry["batched"] for entry in self.theta.values()):
            self.sizes = None  # nothing has the axis of a batch
        dtype = self.choose(["float64", "float32"], [3, 1])
        gradient = self.gradient(made["algorithm"])
        made |= {
            "dtype": dtype, "sizes": self.sizes, "theta": self.theta, "ordered": self.ordered,
            "gradient": gradient, "stop": self._stop(made, gradient, dtype), "seed": self.seed,
        }  # fmt: skip
        made["loss"] = self._loss(made)
        made["start"] = self._start(made)
        return made

    def _stop(self, made: Recipe, gradient: dict[str, Any], dtype: str) -> dict[str, Any]:
        tol = 1e-10 if dtype == "float64" else 1e-6
        if gradient["name"] in ("Unroll", "Forward", "Piggyback"):
            if self.happens(0.25) and gradient["name"] == "Unroll":
                return {"iterations": 400, "tol": tol}
            return {"iterations": 100 if gradient["name"] == "Forward" else 300}
        return {"iterations": 1500, "tol": tol}

    def _loss(self, made: Recipe) -> dict[str, Any]:
        shapes = made["shape"] if made["form"] == "blocks" else [made["shape"]]
        lead = () if self.sizes is None else (len(self.sizes),)
        c = [three_digits(self.rng.normal(size=(*lead, *s))) for s in shapes]
        sizes = None
        if self.sizes is not None:
            sizes = [self.choose([1.0, 1e-3, 1e-6], [6, 1, 1]) for _ in self.sizes]
        return {"c": c if made["form"] == "blocks" else c[0], "sizes": sizes}

    def _start(self, made: Recipe) -> dict[str, Any] | None:
        if made["form"] == "blocks":  # no term tells the shapes
            return {"value": {"tuple": [[1.0 / s[0]] * s[0] for s in made["shape"]]}}
        lead = [] if self.sizes is None else [len(self.sizes)]
        if any(t.get("smoothed") and t["f"] == "NonNegative" for t in made["terms"]):
            return {"value": np.full([*lead, *made["shape"]], 0.5).tolist()}
        if self.happens(0.6):
            return None
        if self.happens(0.5):
            return {"another": self.choose([0.7, 1.5]), "as": self.choose(["state", "solution"])}
        geometry = (made["algorithm"] or {}).get("geometry")
        barriers = ("LogBarrier", "NegativeEntropy", "BregmanTerm")
        if geometry is not None or any(
            t.get("smoothed") or t["f"] in barriers for t in made["terms"]
        ):
            return None
        return {"value": three_digits(self.rng.normal(size=[*lead, *made["shape"]]))}

    def _smooth_part(self, unique: float = 0.88) -> tuple[list[dict[str, Any]], bool]:
        """Smooth terms, and whether a step can be derived from them."""
        terms = [self.smooth(self.shape)]
        if self.happens(0.35):
            terms.append(self.smooth(self.shape))
        if self.happens(unique):
            terms.append(self.ridge(self.shape))
        if not any(t["f"] in _TELLS_SHAPE for t in terms):
            terms.append(self.smooth_named("SquaredDistance", self.shape))
        derivable = all(t["f"] != "Smooth" or "constant" in t["args"] for t in terms)
        return terms, derivable

    def _absorbed(self, core: dict[str, Any]) -> list[dict[str, Any]]:
        if self.happens(0.25):
            return [{"f": "Linear", "args": {"c": self.tensor("c", tuple(self.shape), degree=1)}}]
        if self.happens(0.15):
            return [self.ridge(self.shape)]
        return []

    def _composite(self) -> Recipe:
        smooth, derivable = self._smooth_part()
        core = self.core(self.shape)
        nonsmooth = [core, *self._absorbed(core)]
        return self._with_roles(smooth, nonsmooth, self.forward_backward(None, derivable))

    def _with_roles(self, smooth: Any, nonsmooth: Any, algorithm: Any) -> Recipe:
        if self.happens(0.35):
            chosen = None if self.happens(0.6) and not algorithm.get("geometry") else algorithm
            terms = [*smooth, *nonsmooth]
            order = self.rng.permutation(len(terms))
            return {"form": "energy", "terms": [terms[i] for i in order], "algorithm": chosen}
        terms = [{**t, "role": "smooth"} for t in smooth]
        terms += [{**t, "role": "nonsmooth"} for t in nonsmooth]
        return {"form": "Composite", "terms": terms, "algorithm": algorithm}

    def _bregman(self) -> Recipe:
        """Forward–backward steps in another geometry."""
        kind = self.choose(["Entropy", "simplex", "Burg", "Interval", "Quartic", "Polyhedral"],
                           [2, 3, 1, 2, 1, 1])  # fmt: skip
        n = self.shape[-1]
        derived = True
        if kind == "Polyhedral":
            self.shape = [n]
        smooth, derivable = self._smooth_part(1.0)
        geometry: dict[str, Any] = {"geometry": kind}
        if kind == "simplex":
            geometry = {"geometry": "Entropy"}
            core = self.core(self.shape, kinds=("Simplex",))
            core.pop("shift", None)
        elif kind in ("Entropy", "Burg"):
            core = self.core(self.shape, kinds=("NonNegative", "L1", "AsymmetricL1", "Zero"))
            core.pop("shift", None)
            if core["f"] == "AsymmetricL1" and not np.isfinite(
                core["args"].get("hi", 1.0) if not isinstance(core["args"].get("hi"), str) else 1.0
            ):
                core = {"f": "NonNegative", "args": {}}
            derived = False
        elif kind == "Interval":
            core = self.core(self.shape, kinds=("Box", "L1", "AsymmetricL1", "Zero"))
            core.pop("shift", None)
            args = core["args"]
            ends = isinstance(args.get("lo"), str)
            equal = ends and bool(
                (
                    np.asarray(self.theta[args["lo"]]["value"]) >= self.theta[args["hi"]]["value"]
                ).any()
            )
            if core["f"] == "Box" and ends and not equal:
                geometry |= {"lo": args["lo"], "hi": args["hi"]}
            else:
                core = core if core["f"] != "Box" else {"f": "Zero", "args": {}}
                geometry |= self.choose(
                    [{"lo": -1.0, "hi": 1.0}, {"lo": 0.0, "hi": 2.0}, {"lo": -0.3, "hi": 0.5}]
                )
        elif kind == "Quartic":
            core = self.core(self.shape, kinds=("L1", "Zero"))
            core.pop("shift", None)
        else:
            core = {"f": "Zero", "args": {}}
            A = np.concatenate([np.eye(n), -np.eye(n), self.rng.normal(size=(1, n))])
            geometry["A"] = self.tensor("P", A.shape, batched=False, values=A)
            geometry["b"] = self.tensor("p", (len(A),), "positive", batched=False)
            derived = False
        nonsmooth = [core]
        if self.happens(0.5):
            weight = self.tensor("e", (), "positive", batched=False)
            if geometry["geometry"] == "Entropy" and self.happens(0.6):
                nonsmooth.append({"f": "NegativeEntropy", "args": {"weight": weight}})
            else:
                nonsmooth.append(
                    {"f": "BregmanTerm", "args": {"geometry": geometry, "weight": weight}}
                )
        algorithm = self.forward_backward(geometry, derived and derivable)
        return self._with_roles(smooth, nonsmooth, algorithm)

    def _saddle(self) -> Recipe:
        if self.happens(0.12):
            return self._game()
        core = self.core(self.shape)
        nonsmooth = [core, *self._absorbed(core)]
        smooth = [self.smooth(self.shape)] if self.happens(0.5) else []
        if self.happens(0.88):
            ridge = self.ridge(self.shape)
            (smooth if self.happens(0.3) else nonsmooth).append(ridge)
        if any(t["f"] == "Smooth" and "constant" not in t["args"] for t in smooth):
            smooth = [self.smooth_named("LeastSquares", self.shape)]
        if not any(t["f"] in _TELLS_SHAPE for t in [*smooth, *nonsmooth]):
            nonsmooth.append(self.smooth_named("SquaredDistance", self.shape))
        if self.happens(0.25):
            parts = [self.operator(self.shape, 1) for _ in range(2)]
            operator = {"op": "Stack", "operators": [p[0] for p in parts]}
            penalty: dict[str, Any] = {
                "f": "Separable",
                "blocks": [self.core(p[1], 0.2) for p in parts],
            }
        else:
            operator, out = self.operator(self.shape)
            penalty = self.core(out, 0.2)
        penalty["op"] = operator
        algorithm = self.primal_dual()
        if self.happens(0.4):
            terms = [*smooth, *nonsmooth, penalty]
            order = self.rng.permutation(len(terms))
            algorithm = None if self.happens(0.6) else algorithm
            return {"form": "energy", "terms": [terms[i] for i in order], "algorithm": algorithm}
        terms = [{**t, "role": "smooth"} for t in smooth]
        terms += [{**t, "role": "nonsmooth"} for t in nonsmooth]
        return {
            "form": "Saddle",
            "terms": [*terms, {**penalty, "role": "penalty"}],
            "algorithm": algorithm,
        }

    def _game(self) -> Recipe:
        """Entropic primal and dual steps: min over a simplex, max over a simplex or an interval."""
        n = self.shape[-1]
        self.shape = [n]
        operator = {"op": "Dense", "matrix": self.matrix("K", n, n)}
        weight = self.tensor("e", (), "positive", batched=False)
        core = [{"f": "Simplex", "args": {}}, {"f": "NegativeEntropy", "args": {"weight": weight}},
                {"f": "Linear", "args": {"c": self.tensor("c", (n,), degree=1)}}]  # fmt: skip
        if self.happens(0.5):
            penalty: dict[str, Any] = {"f": "Simplex", "args": {}, "conjugate": True}
            dual: dict[str, Any] = {"geometry": "Entropy"}
        else:
            penalty = {"f": "L1", "args": {"weight": 1.0}}
            dual = {"geometry": "Interval", "lo": -1.0, "hi": 1.0}
        algorithm = self.primal_dual({"geometry": "Entropy"}, dual)
        algorithm.pop("precondition", None)
        terms = [{**t, "role": "nonsmooth"} for t in core]
        terms.append({**penalty, "op": operator, "role": "penalty"})
        return {"form": "Saddle", "terms": terms, "algorithm": algorithm}

    def _newton(self) -> Recipe:
        """Energies with second derivatives, barriers included."""
        smooth, _ = self._smooth_part(1.0)
        kind = self.choose(
            ["none", "LogBarrier", "NonNegative", "Box", "LInfBall"], [2, 1, 1, 1, 1]
        )
        mu = self.tensor("m", (), "positive", batched=False)
        if kind == "LogBarrier":
            smooth.append({"f": kind, "args": {"mu": mu, "lo": -1.0, "hi": 2.0}})
        elif kind == "NonNegative":
            smooth.append({"f": kind, "args": {}, "smoothed": mu})
        elif kind == "Box":
            smooth.append({"f": kind, "args": {"lo": -1.0, "hi": 0.7}, "smoothed": mu})
        elif kind == "LInfBall":
            smooth.append({"f": kind, "args": {"radius": 0.9}, "smoothed": mu})
        else:
            self.theta.pop(mu)
        algorithm = {"name": "Newton", "reuse": self.choose([0.3, 0.0])}
        if kind not in ("none",) and self.happens(0.4):
            algorithm = {"name": "ForwardBackward", "step": {"backtracking": {"grow": 2.0}}}
        made = self._with_roles(smooth, [], algorithm)
        return made

    def _blocks(self) -> Recipe:
        """A tuple of two variables in a product of geometries."""
        self.sizes = None
        self.theta = {}
        self.ordered = []
        n, m = 3, 4
        A, B = self.matrix("A", 5, n, False), self.matrix("B", 5, m, False)
        b = self.tensor("b", (5,))
        norms = [float(np.linalg.norm(self.theta[k]["value"], 2)) for k in (A, B)]
        spec = {"callable": "joint least squares", "A": A, "B": B, "b": b}
        constant = float(f"{1.01 * (norms[0] ** 2 + norms[1] ** 2):.6g}")
        joint = {"f": "joint", "args": {"callable": spec, "constant": constant}, "role": "smooth"}
        terms: list[dict[str, Any]] = [joint]
        geometries: list[Any] = []
        for number, size in enumerate((n, m)):
            self.shape = [size]
            kind = self.choose(["Euclidean", "Entropy", "Interval"], [3, 1, 1])
            if kind == "Euclidean":
                own, geometry = [self.core([size]), self.ridge([size])], None
            elif kind == "Entropy":
                geometry = {"geometry": "Entropy"}
                weight = self.tensor("e", (), "positive")
                own = [
                    {"f": "Simplex", "args": {}},
                    {"f": "NegativeEntropy", "args": {"weight": weight}},
                ]
            else:
                geometry = {"geometry": "Interval", "lo": -1.0, "hi": 1.0}
                weight = self.tensor("e", (), "positive")
                own = [{"f": "Box", "args": {"lo": -1.0, "hi": 1.0}},
                       {"f": "BregmanTerm", "args": {"geometry": geometry, "weight": weight}}]  # fmt: skip
            geometries.append(geometry)
            terms += [{**t, "block": number} for t in own]
        product = {
            "geometry": "Product",
            "blocks": [g or {"geometry": "Euclidean"} for g in geometries],
        }
        algorithm = {"name": "ForwardBackward", "geometry": product}
        return {"form": "blocks", "shape": [[n], [m]], "terms": terms, "algorithm": algorithm}


def draw(seed: int) -> Recipe:
    return Draw(seed).recipe()


class Quotas:
    """How often every feature has appeared; the next recipe holds the rarest of them."""

    def __init__(self, wanted: set[str]) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(wanted, 0))

    def next(self, seed: int, tries: int = 12) -> Recipe:
        """The best of several draws: the one whose rarest feature has been seen least."""
        best, rank = None, None
        for number in range(tries):
            recipe = draw(seed * tries + number)
            found = sorted(self.counts[name] for name in features(recipe))[:3]
            if rank is None or found < rank:
                best, rank = recipe, found
        assert best is not None
        self.counts.update(features(best))
        return best
