"""The example runs, and many penalties do what it says."""

import importlib.util
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "many_penalties.py"


def test_the_example_runs_and_groups_help(capsys):
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 60
    spec = importlib.util.spec_from_file_location("many_penalties_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    results = example.main()
    assert results["one penalty"][0] <= results["LassoCV"][0] * (1 + 1e-6)
    assert results["one a source"][0] < results["one penalty"][0]
    assert "Penalties found: measured" in capsys.readouterr().out
