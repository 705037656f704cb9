"""Energies along the forward iterations, gradients along the back-iterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from legato.cli.toy.loss_figures import heading
from legato.cli.toy.style import CLARKE, COLOURS, MARKERS, note
from legato.console.figures import saved_figure
from legato.studies.toy import BACK_ITERATED, FORWARD, SetResults
from legato.studies.toy.example import KINK, SMOOTH

Array = NDArray[Any]

_FLOOR = 1e-16
"""Below this, differences are rounding."""

# Methods with the same forward iterations share a curve.
_SHARED = {
    "Smoothed-impl": "Smoothed-impl",
    "Proj.GD": "Proj.GD, Proj.GD2",
    "Bregman-FB": "Bregman-FB, -FB2, -FB-impl",
}


def draw_convergence(found: SetResults, path: Path) -> None:
    """Top: the energy. Bottom: the gradient. Left θ = 0.3, right θ = 0."""
    with saved_figure(
        path, 9.6, 7.4, f"{heading(found.toy)}: linear at θ = 0.3, sublinear at θ = 0"
    ) as figure:
        ((energy, kink_energy), (gradient, kink_gradient)) = figure.subplots(2, 2)
        _energies(energy, found, SMOOTH)
        energy.set_xlim(0, 80)
        energy.legend(loc="center right")
        energy.set_title(f"θ = {SMOOTH:g}: energy  E(xⁿ) − min E")
        _energies(kink_energy, found, KINK)
        _rate(kink_energy, found)
        _distances(gradient, found)
        _gradients(kink_gradient, found)


def _energies(axes: Axes, found: SetResults, theta: float) -> None:
    for method, gaps in found.energies[theta].items():
        n = np.arange(1, len(gaps) + 1)
        values = np.array(gaps)
        visible = values > _FLOOR
        if visible.sum() > 1:
            axes.semilogy(n[visible], values[visible], color=COLOURS[method], label=_SHARED[method])
    axes.set_xlabel("forward iterations n")


def _rate(axes: Axes, found: SetResults) -> None:
    alpha = found.toy.bregman_step
    n = np.arange(1, FORWARD + 1)
    axes.loglog(n, 1 / (2 * (alpha * n) ** 2), "k:", lw=1.2, label="1/(2α²n²), i.e. x ≈ 1/(αn)")
    axes.set_title("θ = 0: energy, on two logarithmic axes")
    axes.legend(loc="upper right")
    note(axes, 0.03, 0.05, "Proj.GD, Proj.GD2: at the minimum after one step", va="bottom")


def _accumulation(found: SetResults, theta: float, method: str) -> tuple[Array, Array]:
    """Back-iterations, and the gradient they have gathered."""
    estimates = found.estimates[theta][method]
    return np.array(list(estimates)), np.array([e.gradient for e in estimates.values()])


def _distances(axes: Axes, found: SetResults) -> None:
    for method in BACK_ITERATED:
        backs, values = _accumulation(found, SMOOTH, method)
        distance = np.abs(values - values[-1])
        visible = distance > _FLOOR
        second = method.endswith("2")
        axes.semilogy(
            backs[visible],
            distance[visible],
            color=COLOURS[method],
            ls="" if second else "-",
            marker=MARKERS[method] if second else "",
            mfc="none",
            ms=5,
            label=method,
        )
    axes.set(xlabel="back-iterations K", xlim=(0, 80))
    axes.set_title(f"θ = {SMOOTH:g}: distance of the gradient to its value at K = {FORWARD}")
    axes.legend(loc="upper right")


def _gradients(axes: Axes, found: SetResults) -> None:
    lo, hi = found.toy.clarke()
    axes.axhspan(lo, hi, color=CLARKE, lw=0, zorder=0, label="Clarke subdifferential")
    for method in ("Bregman-FB", "Bregman-FB2"):
        axes.plot(
            *_accumulation(found, KINK, method),
            color=COLOURS[method],
            marker=MARKERS[method],
            ms=3.5,
            lw=1.4,
            label=method,
        )
        limit = found.limits[method]
        axes.axhline(limit, color=COLOURS[method], ls="--", lw=1.1)
        below = method == "Bregman-FB"
        share = limit / found.toy.slope_at_kink()
        axes.annotate(
            f"limit {share:.3f}·λb(x(0) − g)",
            (0.02 * FORWARD, limit),
            xytext=(0, -3 if below else 3),
            textcoords="offset points",
            va="top" if below else "bottom",
            fontsize=8.5,
            color="#333333",
        )
    axes.plot(
        *_accumulation(found, KINK, "Proj.GD"),
        color=COLOURS["Proj.GD"],
        label=_SHARED["Proj.GD"],
        clip_on=False,
    )
    room = 0.28 * (hi - lo)
    axes.set(xlabel="back-iterations K", ylim=(lo - room, hi + 0.05 * (hi - lo)))
    axes.set_xlim(0, FORWARD)
    axes.set_title("θ = 0: the gradient itself; FB2 does not follow FB")
    axes.legend(loc="lower center", ncols=2)
