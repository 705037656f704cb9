"""The README's program runs as printed and does what it says."""

import importlib.util
from pathlib import Path

import torch

EXAMPLE = Path(__file__).parents[1] / "examples" / "readme.py"


def test_the_readme_program_learns_and_its_picture_is_drawn(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("readme_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    program = example.readme_program()
    assert len([line for line in program.splitlines() if line.strip()]) <= 22
    names = {}
    exec(compile(program, "README.md", "exec"), names)
    untrained = names["denoise"](torch.full((2, 6, 6), -2.0))
    first = float((untrained - names["clean"]).square().mean())
    assert float(names["loss"].detach()) < 0.7 * first
    example.picture(names, tmp_path / "readme.png")
    assert (tmp_path / "readme.png").stat().st_size > 10_000
    single, learned = (float(w.split()[-2]) for w in capsys.readouterr().out.strip().split(","))
    assert learned > single + 0.5
