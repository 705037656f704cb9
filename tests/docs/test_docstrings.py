"""Docstrings reach the site as they are meant: lists of arguments, and signs that are no markup."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the site is built by the packages of legato[docs]")
sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))

from public import process


def processed(text):
    lines = text.split("\n")
    process(None, "class", "Example", None, None, lines)
    return "\n".join(lines)


def test_arguments_become_a_list():
    said = processed(
        "A sentence.\n\nArgs:\n    scale (float): at most |x|.\n    coef_: the rest.\n"
    )
    assert r":Parameters: * **scale** (*float*) -- at most \|x\|." in said
    assert "* **coef_** -- the rest." in said


def test_shapes_stay_a_list():
    said = processed("A sentence.\n\nShape:\n    - image: (B, C, *spatial).\n    - output: same.\n")
    assert ".. rubric:: Shape" in said
    assert r"- image: (B, C, \*spatial)." in said


def test_mathematics_and_examples_are_left_alone():
    text = ".. math:: |x_i|*y_\n\n>>> a_ = 2 * b | c"
    assert processed(text).strip() == text
