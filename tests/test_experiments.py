"""What the experiments' pages say is what their result files hold."""

import importlib.util
import json
import re
import statistics
import sys
from pathlib import Path

import pytest

SEGMENT = Path(__file__).parents[1] / "experiments" / "segment"
PAGE = (SEGMENT / "README.md").read_text(encoding="utf-8")


def results(name):
    return json.loads((SEGMENT / name / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["table", "variants"])
def test_the_tables_are_the_result_files_s(name):
    pytest.importorskip("rich")
    from legato.studies.segment.figures import markdown

    lines = markdown(results(name)["rows"]).split("\n\n")[0]
    assert lines in PAGE


def test_what_the_layer_adds_to_finer_scores():
    rows = results("variants")["rows"]
    with_layer, without = (rows[name]["test"]["iou"]["each"] for name in ("skip-global", "skip"))
    gains = [a - b for a, b in zip(with_layer, without, strict=True)]
    assert min(gains) > 0
    assert f"+{statistics.fmean(gains):.2f} ± {statistics.stdev(gains):.2f}** IoU over" in PAGE


def test_the_iterations_are_the_result_file_s():
    pytest.importorskip("matplotlib")
    from legato.studies.segment.figures import iterations_table
    from legato.studies.segment.iterations import slope

    found = results("iterations")
    for row in iterations_table(found)[1]:
        assert "| " + " | ".join(row) + " |" in PAGE
    losses = {}
    for p in found["points"]:
        losses.setdefault((p["average"], p["iterations"]), {})[p["seed"]] = p["loss"]
    assert all(sorted(each) == list(range(10)) for each in losses.values())
    for average in (False, True):  # what the page says of 5 and 100 iterations
        few, many = losses[average, 5], losses[average, 100]
        better = sum(many[seed] < few[seed] for seed in few)
        gain = statistics.fmean(few[seed] - many[seed] for seed in few)
        assert f"{better} of 10 seeds, by {gain:.4f}" in PAGE
    losses = found["search"]["tried"]["5.0"]["losses"]
    many, few = losses["average, 50"], losses["average, 5"]
    assert f"end at {many:.4f} and 5 at {few:.4f}" in PAGE.replace("\n", " ")
    last = [t for t in found["times"] if not t["average"]]
    assert found["slopes"]["last"] == pytest.approx(slope(last))
    assert f"{found['slopes']['last']:.3f} ms" in PAGE


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("nothing (softmax)", "softmax"),
        ("Gaussian blur of the softmax", "blurred softmax"),
        ("fully connected CRF, mean field", "dense CRF"),
        ("`Potts`, contrast weights, 100 iterations", "Potts, contrast weights"),
    ],
)
def test_the_peers_are_the_result_file_s(words, name):
    row = json.loads((SEGMENT / "peers" / "results.json").read_text(encoding="utf-8"))["rows"][name]
    (line,) = re.findall(rf"^\| {re.escape(words)} \|(.*)\|$", PAGE, flags=re.MULTILINE)
    expected = [f"{row['accuracy']:.2f}", f"{row['iou']:.2f}", f"{row['milliseconds']:.1f}"]
    assert [cell.strip() for cell in line.split("|")] == expected


def test_the_upper_level_is_the_result_file_s():
    folder = SEGMENT.parent / "upper_level"
    spec = importlib.util.spec_from_file_location("upper_level_run", folder / "run.py")
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look there
    spec.loader.exec_module(script)
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert script.summary(found["rows"]) == found["summary"]
    assert script.markdown(found["summary"]) in (folder / "README.md").read_text(encoding="utf-8")
