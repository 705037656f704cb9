"""Checks on the values of tensors."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import torch

import legato
from legato._support.checks import largest_entry, require_finite, require_range
from legato.errors import InputError


@pytest.mark.parametrize("place", [0, 40_000, 69_999])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_bad_entry_among_many_is_found(value, place):
    t = torch.rand(70_000)
    t[place] = value
    with pytest.raises(InputError, match="t holds 1 NaN or infinite values of 70000"):
        require_finite(t, "t")


def test_the_largest_entry():
    assert largest_entry(torch.tensor(-3.0)) == 3.0
    assert largest_entry(torch.zeros(0, 3)) == 0.0
    t = torch.randn(3, 40_000).mT
    assert largest_entry(t) == float(t.abs().max())


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(torch.float32, 1e-9, 1e9), (torch.float64, 1e-75, 1e75)]
)
def test_the_range_of_magnitudes(dtype, low, high):
    t = torch.tensor([1.0, 0.0, -0.5], dtype=dtype)
    for size in (0.0, 2 * low, 1.0, high / 2):
        require_range(size * t, "t")
    for size in (low / 2, 2 * high):
        with pytest.raises(InputError, match=r"t has a largest entry of .*Scale the data"):
            require_range(size * t, "t")


def test_random_numbers_are_drawn_where_their_generator_lives():
    """A default device moves what names none; a generator stays on the CPU."""
    missing = []
    for path in sorted(Path(legato.__file__).parent.rglob("*.py")):
        if "studies" in path.parts or "testing" in path.parts:
            continue  # run on the CPU, whatever the default is
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                named = {keyword.arg for keyword in node.keywords}
                if "generator" in named and "device" not in named:
                    missing.append(f"{path.name}:{node.lineno}")
    assert missing == []
