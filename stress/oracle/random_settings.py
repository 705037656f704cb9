"""Random algorithms, gradients, stops, starts and losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.chance import three_digits
from oracle.random_terms import Terms
from oracle.recipes import Recipe


class Settings(Terms):
    """What is done with an energy."""

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
            {"name": "Unroll"}, {"name": "Unroll", "checkpoint": "sqrt"},
            {"name": "Unroll", "last": 200}, {"name": "Unroll", "tol": 1e-6}, {"name": "Forward"},
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
