"""Random recipes from the whole algebra of terms, operators, geometries, algorithms, strategies.

``draw(seed)`` is one recipe; ``Quotas`` draws the rarest next.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from oracle.features import features
from oracle.random_settings import Settings
from oracle.recipes import Recipe

_TELLS_SHAPE = ("LeastSquares", "Quadratic", "Logistic", "SquaredDistance", "Linear")
"""Terms whose data have the shape of the variable, so that no start is needed."""


class Draw(Settings):
    """One recipe in the making."""

    def recipe(self) -> Recipe:
        forms = [self._composite, self._bregman, self._saddle, self._newton, self._blocks]
        made = self.choose(forms, [4, 2.2, 4, 0.8, 0.6])()
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
        algorithm = self.forward_backward(None, derivable)
        if self.happens(0.1):
            algorithm = {"name": "Newton"}
        return self._with_roles(smooth, nonsmooth, algorithm)

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
                kernel = {"geometry": geometry, "weight": weight}
                own = [{"f": "Box", "args": {"lo": -1.0, "hi": 1.0}}]
                own.append({"f": "BregmanTerm", "args": kernel})
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
