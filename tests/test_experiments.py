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
    points = results("iterations")["points"]
    losses = {}
    for count in (5, 10, 20, 50, 100, 200):
        cells = []
        for average in (False, True):
            some = [p for p in points if (p["average"], p["iterations"]) == (average, count)]
            assert [p["seed"] for p in some] == [0, 1, 2]
            late = statistics.fmean(statistics.fmean(p["losses"][-5:]) for p in some)
            loss, accuracy = (statistics.fmean(p[k] for p in some) for k in ("loss", "accuracy"))
            cells += [f"{loss:.4f}", f"{late:.4f}", f"{accuracy:.2f}"]
            losses[average, count] = [p["loss"] for p in some]
        assert f"| {count} | " + " | ".join(cells) + " |" in PAGE
    for many in (100, 200):  # what the page says of the last iterate
        assert all(a < b for a, b in zip(losses[False, many], losses[False, 5], strict=True))


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
