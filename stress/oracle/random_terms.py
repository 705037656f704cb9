"""Random operators and terms."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.chance import Chance, three_digits


class Terms(Chance):
    """Operators, terms with a prox and smooth terms, on variables of any shape."""

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
            "Simplex": 2, "L2Ball": 2, "Zero": 1, "Equality": 0.4, "conjugate": 2, "Quantile": 0.7,
            "Hinge": 0.7, "L2Norm": 0.7, "LInfNorm": 0.7, "MaxEntry": 0.7, "L1Ball": 0.7,
            "SortedL1": 0.7, "SparseGroupL1": 0.7, "Monotone": 0.7, "TotalVariation1D": 0.7,
        }  # fmt: skip
        if kinds is not None:
            names = {k: v for k, v in names.items() if k in kinds}
        name = self.choose(list(names), list(names.values()))
        if name == "Hinge" and self.sizes is not None and set(self.sizes) != {1.0}:
            name = "Quantile"  # which has no size of its own
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
        elif name in ("GroupL1", "L2Ball", "LInfNorm", "MaxEntry", "L1Ball", "TotalVariation1D"):
            args = self._grouped(name, shape, 0.8 if name.endswith("Ball") else strength)
        elif name == "Quantile":
            tau = float(f"{self.rng.uniform(0.1, 0.9):.3g}")
            args = {"tau": tau, "weight": self.weight("w", shape, strength)}
        elif name == "Hinge":
            args = self._labelled(shape, strength)
        elif name == "L2Norm":
            axes = int(self.choose([1, len(shape)]))
            norms = [*shape[: len(shape) - axes], *[1] * axes]
            args = {"weight": self.weight("w", norms, strength)}
            args["dims"] = {"axes": list(range(-axes, 0))}
        elif name == "SortedL1":
            args["weights"] = self._falling(shape, strength)
        elif name == "SparseGroupL1":
            args = self._grouped("GroupL1", shape, strength)
            args["group_weight"] = args.pop("weight")
            args["weight"] = self.weight("w", shape, strength)
        elif name in ("Simplex", "Monotone") and len(shape) > 1 and self.happens(0.4):
            args["dim"] = -2
        elif name == "Equality":
            args["b"] = self.tensor("b", tuple(shape), degree=1)
        return {"f": name, "args": args}

    def _grouped(self, name: str, shape: list[int], scale: float) -> dict[str, Any]:
        word = "radius" if name.endswith("Ball") else "weight"
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
        args: dict[str, Any] = {word: self.weight("w", norms, scale, zeros=word == "weight")}
        return {**args, "dim": dim} if dim != -1 else args

    def _labelled(self, shape: list[int], strength: float) -> dict[str, Any]:
        """Labels of a hinge, which is at 1 whatever the size of an element."""
        labels = np.sign(self.rng.normal(size=shape))
        b = self.tensor("y", tuple(shape), "fixed", batched=False, values=labels)
        return {"b": b, "weight": self.weight("w", shape, strength)}

    def _falling(self, shape: list[int], strength: float) -> str:
        """Weights that do not increase along the last axis, well apart."""
        own = (*[1] * (len(shape) - 1), shape[-1]) if self.sizes is not None else (shape[-1],)
        steps = strength * self.rng.uniform(0.1, 0.5, size=own)
        values = np.flip(np.cumsum(steps, -1), -1)
        return self.tensor("w", own, "nonnegative", 1, self.sizes is not None, values)

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
            "Huber": 1,
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
            Q = self.tensor(
                "Q", (n, n), "symmetric", batched=False, values=root.T @ root + 0.03 * np.eye(n)
            )
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
        elif name == "Huber":
            weight = self.weight("v", shape, 1.0, degree=0, zeros=False)
            delta = self.weight("d", shape, 0.5, zeros=False)
            term = {"f": name, "args": {"delta": delta, "weight": weight}}
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
