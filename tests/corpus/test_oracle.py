"""The oracle itself: it knows all that is public, its cones say what cvxpy says, it sees faults."""

from __future__ import annotations

import json
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from in_cvxpy import minimum
from oracle import vocabulary
from oracle.drawing import draw
from oracle.features import features
from oracle.judge import judge
from oracle.meanings import CONJUGATES, MEANINGS, SMOOTHED
from oracle.program import program
from oracle.truth import Element, values_of

import legato as lg
from legato import functions

RECIPES = [draw(seed) for seed in range(1500)]


def test_everything_public_is_drawn():
    """A new term, operator, geometry, algorithm or strategy needs a maker or a reason."""
    seen = Counter(name for recipe in RECIPES for name in features(recipe))
    missing = sorted(vocabulary.everything() - set(seen))
    assert not missing, f"no recipe ever holds {missing}"


def test_every_term_has_a_meaning():
    wrappers = {"Composed", "Conjugate", "Scaled", "Separable", "Shifted"}
    named = {name.removeprefix("term: ") for name in vocabulary.terms()} - wrappers
    assert named <= set(MEANINGS), sorted(named - set(MEANINGS))
    assert set(functions.__all__) == named | wrappers | set(vocabulary.NOT_A_TERM)


def _kinds(recipe):
    """What of a recipe the cones have to get right."""
    found = set()
    for term in [*recipe["terms"], *(b for t in recipe["terms"] for b in t.get("blocks") or [])]:
        ending = "*" if term.get("conjugate") else " smoothed" if term.get("smoothed") else ""
        found.add(term["f"] + ending)
        found |= {
            f for f in features({**recipe, "terms": [term]}) if f.startswith(("op", "ker", "call"))
        }
    return found | {f for f in features(recipe) if f.startswith("geometry")}


def _covering():
    """Recipes that hold every term and operator at least twice."""
    counts, chosen = Counter(), []
    for recipe in RECIPES:
        new = _kinds(recipe)
        if any(counts[k] < 2 for k in new):
            counts.update(new)
            chosen.append(recipe)
    return chosen


@pytest.mark.parametrize("part", range(4))
def test_cones_agree_with_cvxpy(part):
    compared = 0
    for recipe in _covering()[part::4]:
        element, theta = Element(recipe, 0), values_of(recipe)
        found = element.base(theta)
        if not found.solved or element.size < 1e-3 or found.error > 1e-6 * element.unit:
            continue
        x, value = minimum(element, theta)
        scale = max(abs(value), element.unit**2)
        assert abs(found.value - value) <= 1e-6 * scale, json.dumps(recipe)
        tilt = element.stiffness(theta, found, np.random.default_rng(0))
        if tilt < 100:
            error = np.linalg.norm(found.x - x) / max(np.linalg.norm(x), element.unit)
            assert error <= 1e-4, json.dumps(recipe)
        compared += 1
    assert compared >= 8


def test_all_terms_are_among_the_compared():
    held = {k for recipe in _covering() for k in _kinds(recipe)}
    conjugates = {f"{name}*" for name in ("L1", "GroupL1", "L2Ball", "Simplex", "Box", "LInfBall")}
    assert set(MEANINGS) - {"LInfBall smoothed"} <= held
    assert {f"{name} smoothed" for name in SMOOTHED} | conjugates <= held
    assert {c.removesuffix("*") for c in conjugates} <= set(CONJUGATES)


def _lasso(**changes):
    theta = {
        "A": {"value": [[1.0, 0.3], [0.2, 0.8], [0.0, 0.5]], "kind": "free", "batched": False},
        "b": {"value": [1.0, -0.7, 0.4], "kind": "free", "batched": False},
        "w": {"value": [0.1, 0.05], "kind": "nonnegative", "batched": False},
    }
    terms = [
        {"f": "LeastSquares", "args": {"operator": {"op": "Dense", "matrix": "A"}, "b": "b"}},
        {"f": "L1", "args": {"weight": "w"}},
    ]
    return {
        "seed": 0, "dtype": "float64", "shape": [2], "sizes": None, "theta": theta, "terms": terms,
        "form": "energy", "algorithm": None, "gradient": {"name": "Implicit"}, "start": None,
        "stop": {"iterations": 2000, "tol": 1e-10},
        "loss": {"c": [1.0, -2.0], "sizes": None}, **changes,
    }  # fmt: skip


def test_a_right_lasso_is_right():
    verdict = judge(_lasso())
    assert verdict.outcome == "right"
    assert verdict.slopes == 3
    assert verdict.notes["well posed"]


def test_a_wrong_prox_is_seen(monkeypatch):
    """A map whose derivatives are consistent and whose fixed point is no minimiser."""
    table = sys.modules["legato.functions.prox"]
    right = table.soft_threshold
    monkeypatch.setattr(table, "soft_threshold", lambda y, t: right(y, 1.3 * t))
    assert "converged far from the minimiser" in judge(_lasso()).findings


def test_a_wrong_derivative_is_seen(monkeypatch):
    """The solution is right, but one parameter is detached from it."""
    grad = lg.LeastSquares.grad

    def detached(self, x):
        return grad(lg.LeastSquares(self.operator, self.b.detach(), self.weight), x)

    monkeypatch.setattr(lg.LeastSquares, "grad", detached)
    assert "silent wrong gradient: Implicit" in judge(_lasso()).findings


def test_a_needless_warning_is_seen(monkeypatch):
    from legato.gradients import fixed_point

    monkeypatch.setattr(fixed_point, "warn_if_far", lambda *_: fixed_point._warn_of_the_loss(0.0))
    assert "false alarm" in judge(_lasso()).findings


def test_a_kink_is_an_interval():
    """b at the very point where an entry becomes active: both one-sided slopes are accepted."""
    theta = {
        "y": {"value": [1.0, 0.5], "kind": "free", "batched": False},
        "w": {"value": [1.0, 0.2], "kind": "nonnegative", "batched": False},
    }
    terms = [{"f": "SquaredDistance", "args": {"y": "y"}}, {"f": "L1", "args": {"weight": "w"}}]
    recipe = _lasso(theta=theta, terms=terms)
    element, values = Element(recipe, 0), values_of(recipe)
    slope = element.slope(values, {"y": np.array([1.0, 0.0])}, element.base(values))
    assert slope.kink
    assert (slope.low, slope.high) == pytest.approx((0.0, 1.0), abs=1e-3)
    assert judge(recipe).outcome == "right"


def test_the_truth_scales():
    """Problems a million times smaller are solved as accurately, and move as they should."""
    theta = {
        "y": {"value": [[1.0, 0.5, -0.8]], "kind": "free", "batched": True},
        "lo": {"value": [[-0.3, -0.2, -0.1]], "kind": "free", "batched": True},
        "hi": {"value": [[0.1, 0.4, 0.2]], "kind": "free", "batched": True},
        "w": {"value": [[0.3]], "kind": "nonnegative", "batched": True},
    }
    terms = [
        {"f": "SquaredDistance", "args": {"y": "y"}},
        {"f": "AsymmetricL1", "args": {"lo": "lo", "hi": "hi"}},
        {"f": "GroupL1", "args": {"weight": "w"}},
    ]
    found = []
    for size in (1.0, 1e-6):
        scaled = {name: dict(entry) for name, entry in theta.items()}
        for entry in scaled.values():
            entry["value"] = (size * np.asarray(entry["value"])).tolist()
        loss = {"c": [[1.0, -2.0, 0.5]], "sizes": [1.0]}
        recipe = _lasso(theta=scaled, terms=terms, shape=[3], sizes=[size], loss=loss)
        element, values = Element(recipe, 0), values_of(recipe)
        base = element.base(values)
        moved = element._moved(values, {"y": size * np.array([[1.0, 1.0, 0.0]])}, 1e-3, base)
        found.append((base.x / size, base.value / size**2, moved / size))
    (x, value, moved), (small_x, small_value, small_moved) = found
    np.testing.assert_allclose(small_x, x, rtol=1e-6)
    np.testing.assert_allclose(small_moved, moved, rtol=1e-3)
    assert small_value == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("seed", [0, 5, 8, 13, 40])
def test_a_recipe_is_a_program(seed):
    """What is printed for a person gives what the recipe gives."""
    recipe = next(r for r in RECIPES[seed:] if r["start"] is None and r["dtype"] == "float64")
    recipe = {**recipe, "stop": {"iterations": 5}, "gradient": {"name": "Unroll"}}
    from oracle.attempt import attempt

    done, place = attempt(recipe), {}
    exec(program(recipe).replace("print(", "(lambda *a: a)("), place)
    x = place["solution"].x
    for found, known in zip(x if isinstance(x, tuple) else (x,), done.x, strict=True):
        torch.testing.assert_close(found.detach(), torch.from_numpy(known))
