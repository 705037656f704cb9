"""The README's program runs as printed and does what it says."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch

import legato

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "readme.py"
README = (ROOT / "README.md").read_text(encoding="utf-8")


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
    printed = [float(n) for n in re.findall(r"([\d.]+) dB\s+with", README)]
    assert printed == pytest.approx([single, learned], abs=0.3)


def test_the_energies_of_the_readme_solve():
    torch.manual_seed(0)
    names = {"lg": legato, "y": torch.rand(1, 8, 8), "covariance": torch.eye(4), "cost": 0.01}
    names |= {"blur": legato.Convolution(torch.full((1, 1, 3, 3), 1 / 9)), "returns": torch.rand(4)}
    names |= {"held": torch.full((4,), 0.25), "A": torch.randn(20, 8), "b": torch.randn(20)}
    (lines,) = re.findall(r"```python\n(lg\..*?)```", README, flags=re.DOTALL)
    assert len(lines.splitlines()) == 3
    for line in lines.splitlines():
        stop = legato.Stop(5000, tol=1e-5)
        assert legato.solve(eval(line, names), stop=stop).converged, line


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("network alone, control", "control"),
        ("the paper's weights, output and loss", "paper"),
        ("contrast weights", "contrast"),
        ("learned weights", "global"),
    ],
)
def test_the_scores_are_those_of_the_result_file(words, name):
    results = json.loads((ROOT / "experiments/segment/table/results.json").read_text())
    (line,) = re.findall(rf"^\|[^|]*{words} \|(.*)\|$", README, flags=re.MULTILINE)
    test = results["rows"][name]["test"]
    expected = [f"{test[key]['mean']:.2f} ± {test[key]['std']:.2f}" for key in ("accuracy", "iou")]
    assert [cell.strip() for cell in line.split("|")] == expected


@pytest.mark.parametrize("name", ["skip", "skip-global"])
def test_what_finer_scores_reach_is_in_the_result_file(name):
    results = json.loads((ROOT / "experiments/segment/variants/results.json").read_text())
    iou = results["rows"][name]["test"]["iou"]
    assert f"{iou['mean']:.2f} ± {iou['std']:.2f}" in README


def test_the_layer_s_time_is_that_of_the_result_file():
    results = json.loads((ROOT / "benchmarks/results/potts_h200.json").read_text())
    measured = results["problems"]["5x3x240x320"]["ours, the module"]["both_ms"]
    (printed,) = re.findall(r"([\d.]+) ms forward and reverse", README)
    assert printed == f"{measured:.1f}"


def test_times_of_programs_are_those_of_the_result_file():
    results = json.loads((ROOT / "benchmarks/results/programs_h200.json").read_text())
    rows = {row["programs"]: row for row in results["rows"]}
    words = " ".join(README.split())

    def ms(programs, who):
        return f"{rows[programs][f'{who} both']['milliseconds']:.0f}"

    first, second = ([ms(n, who) for who in ("legato", "qpax", "qpth")] for n in (4096, 1024))
    assert (
        f"take {first[0]} ms with the gradient, where qpax takes {first[1]} and qpth {first[2]}"
        in words
    )
    assert f"take {second[0]}, where qpax takes {second[1]}" in words
    alone = json.loads((ROOT / "benchmarks/results/programs_kernel_h200.json").read_text())
    rows = {row["programs"]: row for row in alone["rows"]}
    assert f"{ms(4096, 'legato')} and {ms(1024, 'legato')} ms, measured alone" in words


def test_the_compiled_engine_s_ratios_to_the_scan_are_those_of_the_result_file():
    results = json.loads((ROOT / "benchmarks/results/engine_h200.json").read_text())
    assert len(results["rows"]) == 4
    words = " ".join(README.split())

    def between(kind):
        rows = [row["milliseconds"] for row in results["rows"].values()]
        ratios = [ms[f"compiled_{kind}"] / ms[f"jax_{kind}"] for ms in rows]
        return f"{min(ratios):.2f} to {max(ratios):.2f}"

    assert f"it took {between('forward')} of the time of a JAX scan" in words
    assert f"with `Unroll` {between('unroll')} (" in words
    later = json.loads((ROOT / "benchmarks/results/engine_direct_h200.json").read_text())["rows"]
    lasso, nnls = (later[name]["milliseconds"] for name in ("lasso", "nnls"))
    ratios = [f"{ms['compiled_forward'] / ms['jax_forward']:.2f}" for ms in (lasso, nnls)]
    assert f"took {ratios[0]} and {ratios[1]} of the scan's time" in words


def test_the_picture_s_numbers_are_in_the_text():
    """So that nothing is lost where pictures are not shown."""
    picture = re.search(r'<img src="docs/readme.png"[^>]*alt="([^"]+)"', README)[1]
    numbers = re.findall(r"[\d.]+ dB", picture)
    assert len(numbers) == 3
    assert all(README.replace(picture, "").count(number) for number in numbers)


def test_formulas_need_no_renderer():
    assert "$$" not in README
    assert not re.search(r"\$[^$\n]+\$", README)


def test_every_file_the_readme_points_to_exists():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    targets += re.findall(r'<img src="(?!https?:)([^"]+)"', README)
    assert len(targets) > 5
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_outside_the_repository_no_path_is_left(monkeypatch):
    """What a package index shows: words without an address, links and pictures with one."""
    pytest.importorskip("hatchling", reason="builds the distributions")
    monkeypatch.syspath_prepend(ROOT)
    from hatch_build import outside

    local = re.compile(r'\]\((?!https?:)|<img src="(?!https?:)')
    assert local.search(README)
    plain = outside(README, None)
    assert not local.search(plain)
    assert "docs/start.md" in plain
    assert "29.9 dB" in plain
    linked = outside(README, "https://example.org/legato/")
    assert not local.search(linked)
    assert 'src="https://example.org/legato/raw/main/docs/readme.png"' in linked
    assert "(https://example.org/legato/blob/main/docs/start.md)" in linked
