"""How the segmentation's energy and gap came down."""

from __future__ import annotations

from matplotlib.axes import Axes

from legato.cli.explore.svg import INK, curves, logarithmic
from legato.studies.explore import Segmentation

_BLUE, _ORANGE = "#0072B2", "#D55E00"


def energy_curve(found: Segmentation) -> str:
    """The energy, the bound from below, and what colours alone would cost."""
    bound = [energy - gap for energy, gap in zip(found.energy, found.gap, strict=True)]

    def draw(axes: Axes) -> None:
        axes.fill_between(found.iterations, bound, found.energy, color=_BLUE, alpha=0.15, lw=0)
        axes.plot(found.iterations, found.energy, color=_BLUE, label="energy of the iterate")
        axes.plot(found.iterations, bound, color=_BLUE, ls=":", label="bound from below")
        axes.axhline(found.cost_only_energy, color=_ORANGE, ls="--", lw=1.2, label="colours alone")
        # The first steps are far off: the view is for where things are decided.
        last, near = found.energy[-1], found.cost_only_energy
        room = max(abs(near - last), 0.05 * abs(last), 1e-6)
        axes.set_ylim(min(last, near) - 1.5 * room, max(last, near) + 2 * room)
        logarithmic(axes, x=True)
        axes.set(xlabel="iteration", title="Energy per pixel")
        axes.legend(loc="upper right")

    return curves(
        draw,
        f"Energy per pixel over the iterations, ending at {found.energy[-1]:.4g}.",
        "The smallest energy lies in the shade, whatever it is.",
    )


def gap_curve(found: Segmentation) -> str:
    """The primal–dual gap."""
    seen = [(n, gap) for n, gap in zip(found.iterations, found.gap, strict=True) if gap > 0]

    def draw(axes: Axes) -> None:
        axes.plot([n for n, _ in seen], [gap for _, gap in seen], color=_BLUE, marker="o", ms=3)
        logarithmic(axes, x=True, y=bool(seen))
        if not seen:
            axes.text(0.5, 0.5, "no gap left", ha="center", transform=axes.transAxes, color=INK)
        axes.set(xlabel="iteration", title="Primal–dual gap per pixel")

    return curves(
        draw,
        f"The gap over the iterations, ending at {found.gap[-1]:.2g}.",
        "By at most this much the energy is too large: a certificate, not an estimate.",
    )
