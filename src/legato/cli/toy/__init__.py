"""``legato toy``: the paper's one-dimensional example, in numbers and pictures."""

from legato.cli.toy.command import draw_figures, toy

__all__ = ["draw_figures", "toy"]
