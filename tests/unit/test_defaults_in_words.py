"""The numbers that solvers and layers take by themselves are those that their docstrings name.

A default is chosen, not derived: no truth tells it, but whoever reads the page relies on it.
"""

from __future__ import annotations

import inspect
import re

import pytest
import torch

import legato as lg
import legato.nn
from legato.algorithms import Algorithm
from legato.gradients import GradientStrategy
from legato.gradients.linear import LinearSolver

KINDS = (Algorithm, GradientStrategy, LinearSolver, lg.Backtracking, lg.Stop)


def numbers(of):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(of).parameters.items()
        if isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool)
    }


def those_that_iterate():
    for module in (lg, legato.nn):
        for name in dir(module):
            one = getattr(module, name)
            if not inspect.isclass(one) or inspect.isabstract(one):
                continue
            layer = issubclass(one, torch.nn.Module) and "iterations" in numbers(one)
            if numbers(one) and (layer or issubclass(one, KINDS)):
                yield pytest.param(one, id=name)


CHOSEN = [*those_that_iterate()]


@pytest.mark.parametrize("one", CHOSEN)
def test_defaults(one):
    said = re.search(r"Defaults?: ((?:``\w+=\S+``(?:,\s+)?)+)\.", inspect.getdoc(one))
    assert said, f"{one.__name__}: no sentence such as 'Defaults: ``tol=1e-6``.' in its docstring"
    named = re.findall(r"``(\w+)=(\S+)``", said[1])
    assert {name: eval(value) for name, value in named} == numbers(one)  # such as 8**-0.5


def test_solvers_and_layers_are_among_them():
    assert {"Direct", "GMRES", "Potts", "Piggyback", "Newton", "Stop"} <= {p.id for p in CHOSEN}
