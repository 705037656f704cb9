"""Warnings: at the user's line, folded when printed, complete when asked for."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch

import legato as lg
from legato._support.telling import listening, tell
from legato.errors import InexactGradientWarning, LegatoWarning

LOOP = """
import torch
import legato as lg

weight = torch.tensor(0.1, requires_grad=True)
data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.1])), torch.tensor([1.0, 2.0]))
for step in range(120):
    energy = data + lg.L1((1 + 0.001 * step) * weight)
    found = lg.solve(energy, gradient=lg.OneStep(), stop=lg.Stop(1000, tol=1e-6))
    found.x.sum().backward()  # here
assert len(found.backward.warnings) == 1, found.backward
"""


def test_a_loop_is_told_three_times_at_its_own_line(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    line = 1 + next(n for n, text in enumerate(LOOP.splitlines()) if "# here" in text)
    said = [text for text in done.stderr.splitlines() if "Warning:" in text]
    assert len(said) == 3
    assert all(f"loop.py:{line}: InexactGradientWarning" in text for text in said)
    assert "Warning 10 of this kind from this line; the next is 100" in said[1]


@pytest.mark.parametrize("times", [1, 12])
def test_who_records_gets_all(times):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(times):
            tell("something", LegatoWarning)
    assert [str(w.message) for w in said] == ["something"] * times
    assert all(w.filename == __file__ for w in said)


def test_errors_stay_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(LegatoWarning, match="something"):
                tell("something", LegatoWarning)


def test_what_is_ignored_is_still_heard():
    with warnings.catch_warnings(), listening() as outer, listening() as words:
        warnings.simplefilter("ignore")
        tell("something", LegatoWarning)
        with listening() as inner:
            tell("else", LegatoWarning)
    assert (inner, words, outer) == (["else"], ["something", "else"], ["something", "else"])


def test_kinds_are_counted_apart(recwarn):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(10):
            for kind in (LegatoWarning, InexactGradientWarning):
                tell("something", kind)
    assert len(said) == 4


def test_the_report_knows_what_was_said_in_the_backward_pass():
    weight = torch.tensor(0.1, requires_grad=True)
    data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.1])), torch.tensor([1.0, 2.0]))
    found = lg.solve(data + lg.L1(weight), gradient=lg.OneStep(), stop=lg.Stop(1000, tol=1e-6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.x.sum().backward()
    (words,) = found.backward.warnings
    assert "OneStep leaves out" in words
