"""The solution of a recipe and its derivative, without legato, with their own uncertainty.

Every element of a batch is a problem of its own. Its derivative along a direction of θ comes from
differences of solutions on both sides, with steps of several sizes: where the two sides disagree
whatever the step, θ lies on a kink, and the truth is the interval between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from oracle.cones import Array, Found, Program, Rows
from oracle.meanings import add_term, stay_inside
from oracle.recipes import Recipe

STEPS = (1e-3, 2e-4, 4e-5, 8e-6)
"""Steps of the differences, relative to the size of what is moved."""

TOL = 1e-14
"""What the solver is asked for; it mostly comes close."""

FACTORS = (1.0, 0.3, 4.0, 0.05)
"""In front of the objective, which change no minimiser but the way to it."""

Theta = dict[str, Array]


@dataclass
class Answer:
    """A minimiser and the minimum; ``error`` is how far two solves of it are apart."""

    x: Array
    value: float
    gap: float
    solved: bool
    infeasible: bool = False
    error: float = 0.0


@dataclass
class Slope:
    """The derivative of a loss: an interval (one number, off a kink), known up to ``error``.

    ``scale`` is ‖∇ℓ‖·‖dx‖, by which errors of a gradient are measured.
    """

    low: float
    high: float
    error: float
    scale: float
    decided: bool
    kink: bool = False


def values_of(recipe: Recipe) -> Theta:
    """θ as legato sees it: rounded to the recipe's precision."""
    precision = np.float32 if recipe["dtype"] == "float32" else np.float64
    return {
        name: np.asarray(entry["value"], precision).astype(float)
        for name, entry in recipe["theta"].items()
    }


class Element:
    """One element of a batch."""

    def __init__(self, recipe: Recipe, number: int) -> None:
        self.recipe = recipe
        self.number = number
        self.blocks = recipe["form"] == "blocks"
        shapes = recipe["shape"] if self.blocks else [recipe["shape"]]
        self.shapes = [tuple(s) for s in shapes]
        self.batched = recipe["sizes"] is not None
        self.size = recipe["sizes"][number] if self.batched else 1.0
        algorithm = recipe["algorithm"] or {}
        geometry = algorithm.get("geometry")
        blocks = (geometry or {}).get("blocks") if self.blocks else None
        self.geometries = blocks or [geometry] * len(self.shapes)
        if recipe["algorithm"] is None:  # legato takes the geometry of a kernel in the energy
            self.geometries = [_own_kernel(recipe)]

    def domain(self, theta: Theta) -> float:
        """The size of polyhedra in whose geometry legato works, 0 without them.

        Their mirror coordinates are slacks: a point near 0 is known to the digits that these leave,
        not to its own, and a step begins, and a tolerance is meant, in the size of the polyhedron.
        """
        ends = [
            theta[g["b"]]
            for g in self.geometries
            if g is not None and g.get("geometry") == "Polyhedral"
        ]
        return float(np.sqrt(sum((b**2).sum() for b in ends)))

    def _numbers(self, theta: Theta) -> Any:
        def numbers(entry: Any) -> Any:
            if not isinstance(entry, str):
                return entry
            value = theta[entry]
            return value[self.number] if self.recipe["theta"][entry]["batched"] else value

        return numbers

    def _program(self, theta: Theta, unit: float) -> tuple[Program, list[Rows]]:
        numbers = self._numbers(theta)
        program = Program(unit)
        xs = [program.variables(int(np.prod(s))) for s in self.shapes]
        for x, shape, geometry in zip(xs, self.shapes, self.geometries, strict=True):
            stay_inside(program, x, shape, geometry, numbers)
        for term in self.recipe["terms"]:
            if term["f"] == "joint":
                spec = term["args"]["callable"]
                A, B, b = (np.asarray(numbers(spec[k])) for k in ("A", "B", "b"))
                program.minimise_squares(xs[0].through(A).plus(xs[1].through(B)).minus(b))
            else:
                block = term.get("block", 0)
                add_term(program, xs[block], self.shapes[block], term, numbers)
        return program, xs

    def solve(
        self, theta: Theta, tilt: Array | None = None, unit: float | None = None,
        factors: tuple[float, ...] = FACTORS,
    ) -> Answer:  # fmt: skip
        """The minimiser for θ; ``tilt`` adds a linear term.

        Now and then the solver gives up early: another factor in front of the objective helps.
        """
        unit = self.size if unit is None else unit
        program, xs = self._program(theta, unit)
        if tilt is not None:
            rows = Rows(np.concatenate([x.padded(program.size) for x in xs]), np.zeros(len(tilt)))
            program.minimise(rows, tilt)
        best: Found | None = None
        for factor in factors:
            found = program.solve(factor, TOL)
            if best is None or (found.solved and (not best.solved or found.gap < best.gap)):
                best = found
            if best.infeasible or (
                best.solved and best.gap <= 20 * TOL * max(unit**2, abs(best.value))
            ):
                break
        assert best is not None
        x = unit * best.z[: sum(len(r) for r in xs)]
        return Answer(x, best.value, best.gap, best.solved, best.infeasible)

    def base(self, theta: Theta) -> Answer:
        """The solution, in the unit that fits it, with the difference between two solves."""
        self.unit = self.size
        first = self.solve(theta)
        if not first.solved and self.size != 1.0:
            self.unit = 1.0
            first = self.solve(theta, unit=self.unit)
        largest = float(np.abs(first.x).max(initial=0.0)) if first.solved else 0.0
        largest = max(largest, 1e-3 * self.size)  # a minimiser of 0 has no size of its own
        if first.solved and not 1e-2 < largest / self.unit < 1e2:
            other = self.solve(theta, unit=largest)
            if other.solved:
                first, self.unit = other, largest
        return self._agreed(theta, first)

    def _agreed(self, theta: Theta, first: Answer) -> Answer:
        """One of the two solves, with different factors, that are closest to each other."""
        first.solved = first.solved and self._is_tight(first)
        if not first.solved:
            return first
        found = [first]
        for factor in (0.7, 2.5, 0.15):
            found.append(self.solve(theta, unit=self.unit, factors=(factor,)))
            if not (found[-1].solved and self._is_tight(found[-1])):
                found.pop()
                continue
            *earlier, last = found
            nearest = min(earlier, key=lambda a: float(np.linalg.norm(a.x - last.x)))
            error = float(np.linalg.norm(nearest.x - last.x))
            if len(found) == 2 or error < first.error:
                best = min(nearest, last, key=lambda a: a.gap)
                first = Answer(best.x, best.value, best.gap, True, False, error)
            if first.error <= 1e-10 * self.unit:
                break
        if len(found) == 1:
            first.error = np.inf
        return first

    def _is_tight(self, answer: Answer) -> bool:
        """Whether the gap is closed, whatever the solver says: two may agree where they stuck."""
        return answer.gap <= 1e-6 * max(self.unit**2, abs(answer.value))

    def value_at(self, theta: Theta, x: Array) -> float | None:
        """The energy at a point, None where it is infinite: the program with x fixed."""
        program, xs = self._program(theta, self.unit)
        rows = Rows(np.concatenate([r.padded(program.size) for r in xs]), np.zeros(len(x)))
        program.zero(rows.minus(x))
        found = program.solve(tol=1e-9)
        return found.value if found.solved and not found.infeasible else None

    def stiffness(
        self, theta: Theta, base: Answer, rng: np.random.Generator, size: float = 1e-5
    ) -> float:
        """How far x moves per unit of a linear term: large where the minimiser is not unique.

        At a minimiser that is not unique a tilt of any size moves x by as much as the set is wide.
        """
        worst = 0.0
        for _ in range(2):
            tilt = rng.normal(size=base.x.shape)
            tilt *= size * self.unit / np.linalg.norm(tilt)
            for sign in (1.0, -1.0):
                moved = self.solve(theta, sign * tilt, self.unit)
                if not moved.solved:
                    return np.inf
                worst = max(worst, float(np.linalg.norm(moved.x - base.x)) / (size * self.unit))
        return worst

    # --- the loss and its slope -------------------------------------------------------------------

    def loss_gradient(self, x: Array) -> Array:
        """∇ℓ(x) for ℓ(x) = size·(⟨c, x⟩ + ½‖x‖²)."""
        spec = self.recipe["loss"]
        slopes = spec["c"] if self.blocks else [spec["c"]]
        if not self.batched:
            return np.concatenate([np.asarray(c, float).ravel() for c in slopes]) + x
        own = np.concatenate([np.asarray(c[self.number], float).ravel() for c in slopes])
        return spec["sizes"][self.number] * (own + x)

    def slope(self, theta: Theta, direction: Theta, base: Answer, careful: bool = False) -> Slope:
        """dℓ/dt along θ + t·direction at t = 0; if ``careful``, from solves that agree in pairs."""
        xi = self.loss_gradient(base.x)
        size = float(np.linalg.norm(base.x))
        noise = max(base.error, 1e-12 * size + 1e-13 * self.unit)
        floor = 1e-2 * max(size, self.size)
        rights: list[Array | None] = []
        lefts: list[Array | None] = []
        for h in STEPS:
            rights.append(self._moved(theta, direction, h, base, careful))
            lefts.append(self._moved(theta, direction, -h, base, careful))
            if len(rights) < 2:
                continue
            found = _judge_sides(rights, lefts, xi, noise, floor)
            if found is not None:
                return found
        return Slope(0.0, 0.0, np.inf, 1.0, decided=False)

    def _moved(
        self, theta: Theta, direction: Theta, h: float, base: Answer, careful: bool = False
    ) -> Array | None:
        """(x(h) − x(0))/h, None where θ + h·direction is no problem."""
        moved = {k: v + h * direction[k] if k in direction else v for k, v in theta.items()}
        for name, entry in self.recipe["theta"].items():
            if entry["kind"] in ("nonnegative", "positive") and (moved[name] < 0).any():
                return None
        for lo, hi in self.recipe.get("ordered", ()):
            if (moved[lo] > moved[hi]).any():
                return None
        answer = self.solve(moved, unit=self.unit)
        if careful:
            answer = self._agreed(moved, answer)
            if answer.error > 0.1 * float(np.linalg.norm(answer.x - base.x)):
                return None
        return (answer.x - base.x) / h if answer.solved else None


def _own_kernel(recipe: Recipe) -> Any:
    for term in recipe["terms"]:
        if term["f"] == "NegativeEntropy":
            return {"geometry": "Entropy"}
        geometry = term.get("args", {}).get("geometry")
        if term["f"] == "BregmanTerm" and geometry["geometry"] != "Euclidean":
            return geometry
    return None


def _judge_sides(
    rights: list[Array | None], lefts: list[Array | None], xi: Array, noise: float, floor: float
) -> Slope | None:
    """The slope from the last two steps, None where smaller steps have to decide.

    ``floor`` is a speed of x below which θ is said to have no influence.
    """
    sides = [(s[-2], s[-1]) for s in (rights, lefts) if s[-1] is not None and s[-2] is not None]
    if not sides:
        return None
    size, h = float(np.linalg.norm(xi)), STEPS[len(rights) - 1]
    ratio = h / STEPS[len(rights) - 2]
    doubt = 2 * noise / h
    speed = max(float(np.linalg.norm(fine)) for _, fine in sides)
    moving = max(speed, floor)
    ends, doubts = [], []
    for coarse, fine in sides:
        change = float(np.linalg.norm(coarse - fine))
        if change > 0.02 * moving + 4 * doubt:
            return None  # a kink between the two steps, or an error that is not yet small
        # Off kinks one-sided differences have an error ~ h; two steps extrapolate it away.
        ends.append(float(xi @ (fine + (fine - coarse) * ratio / (1 - ratio))))
        doubts.append(size * (0.2 * change + doubt))
    if max(doubts) > 0.01 * size * moving:
        return None
    apart = float(np.linalg.norm(sides[0][1] - sides[-1][1]))
    kink = apart > 0.05 * moving + 4 * doubt
    return Slope(min(ends), max(ends), max(doubts), size * moving, decided=True, kink=kink)
