"""What the experiments' pages say is what their result files hold."""

import importlib.util
import json
import statistics
import sys
from pathlib import Path

import pytest

SEGMENT = Path(__file__).parents[1] / "experiments" / "segment"
PAPER = (SEGMENT.parents[1] / "docs" / "paper.md").read_text(encoding="utf-8")
PAGE = (SEGMENT / "README.md").read_text(encoding="utf-8")


def script(path):
    """A script of the experiments as a module."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def results(name):
    return json.loads((SEGMENT / name / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["table", "variants"])
def test_the_tables_are_the_result_files_s(name):
    pytest.importorskip("rich")
    from legato.studies.segment.figures import markdown

    lines = markdown(results(name)["rows"]).split("\n\n")[0]
    assert lines in PAGE


def test_the_definitions_of_iou_are_the_result_file_s():
    """And what the page says of them: how many times what the accuracy lacks the IoU lacks."""
    pytest.importorskip("rich")
    from legato.studies.segment.figures import definitions_markdown

    rows = results("table")["rows"]
    assert definitions_markdown(rows) in PAGE

    def lacks(part, *keys):
        found = [row[part] for row in rows.values()]
        times = [
            (100 - one[key]["mean"]) / (100 - one["accuracy"]["mean"])
            for one in found
            for key in keys
        ]
        return f"{min(times):.1f}", f"{max(times):.1f}"

    over_images = ("iou_of_images", "iou_of_present")
    assert lacks("train", "iou") == ("2.0", "2.1")
    assert lacks("train", *over_images) in (("3.0", "3.3"), ("3.1", "3.3"))
    assert lacks("test", "iou") == ("1.9", "1.9")
    assert lacks("test", *over_images) == ("2.6", "2.8")
    paper = [(97.54, 92.21), (97.90, 93.53), (92.40, 82.65), (93.00, 84.01)]
    assert [f"{(100 - i) / (100 - a):.1f}" for a, i in paper] == ["3.2", "3.1", "2.3", "2.3"]


def test_what_the_paper_s_model_and_one_weight_gain():
    rows = results("table")["rows"]
    paper, contrast, uniform = (
        rows[name]["gain"]["iou"] for name in ("paper", "contrast", "uniform")
    )
    assert f"costs {-uniform['mean']:.2f} ± {uniform['std']:.2f} points" in PAGE
    assert rows["uniform"]["train"]["iou"]["mean"] < rows["control"]["train"]["iou"]["mean"]
    assert f"it gains +{paper['mean']:.2f} where the paper has +1.36" in PAPER
    assert 0.45 * contrast["mean"] < paper["mean"] < 0.5 * contrast["mean"]
    assert paper["mean"] < 0.5 * 1.36


def test_what_the_layer_adds_to_finer_scores():
    rows = results("variants")["rows"]
    with_layer, without = (rows[name]["test"]["iou"]["each"] for name in ("skip-global", "skip"))
    gains = [a - b for a, b in zip(with_layer, without, strict=True)]
    assert min(gains) > 0
    assert f"+{statistics.fmean(gains):.2f} ± {statistics.stdev(gains):.2f}** IoU over" in PAGE


def test_the_iterations_are_the_result_file_s():
    pytest.importorskip("matplotlib")
    from legato.studies.segment.figures import iterations_markdown
    from legato.studies.segment.iterations import slope

    found = results("iterations")
    assert iterations_markdown(found) in PAGE
    losses = {}
    for p in found["points"]:
        losses.setdefault((p["average"], p["iterations"]), {})[p["seed"]] = p["loss"]
    assert all(sorted(each) == list(range(10)) for each in losses.values())
    for average in (False, True):  # what the page says of 5 and 100 iterations
        few, many = losses[average, 5], losses[average, 100]
        better = sum(many[seed] < few[seed] for seed in few)
        gain = statistics.fmean(few[seed] - many[seed] for seed in few)
        assert f"{better} of 10 seeds, by {gain:.4f}" in PAGE
    means = {row: statistics.fmean(each.values()) for row, each in losses.items()}
    assert min(means[True, count] for count in (10, 20, 50, 100, 200)) > means[True, 5]
    lasts = [means[False, count] for count in (5, 10, 20, 50, 100, 200)]
    assert lasts == sorted(lasts, reverse=True)
    losses = found["search"]["tried"]["5.0"]["losses"]
    many, few = losses["average, 50"], losses["average, 5"]
    assert f"end at {many:.4f} and 5 at {few:.4f}" in PAGE.replace("\n", " ")
    for average, name in ((False, "last"), (True, "average")):
        times = [t for t in found["times"] if t["average"] == average]
        assert found["slopes"][name] == pytest.approx(slope(times))
        assert f"{found['slopes'][name]:.3f} ms to the {name}" in PAGE


def peers(name):
    return json.loads((SEGMENT / "peers" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["results", "regions"])
def test_the_peers_are_the_result_file_s(name):
    pytest.importorskip("matplotlib")
    found = peers(name)
    assert script(SEGMENT / "publish.py").peers_markdown(found) in PAGE
    assert (found["settings"]["draws"], found["settings"]["tune_on"]) == (40, 30)


def test_what_the_page_says_of_the_dense_crf():
    rows, text = peers("results")["rows"], PAGE.replace("\n", " ")
    crf, far = rows["dense CRF"], rows["Potts, far neighbours"]
    ious, tuned = (
        [a[key] - b[key] for a, b in zip(far["each"], crf["each"], strict=True)]
        for key in ("iou", "tuned_iou")
    )
    assert f"is ahead by {statistics.fmean(ious):.2f} points of IoU" in text
    behind = sorted(iou for iou in ious if iou < 0)
    assert f"by {max(ious):.2f} on one of them and behind by {-behind[0]:.2f}" in text
    assert f"and {-behind[1]:.2f} on the others" in text
    assert min(tuned) > 0
    assert [one["parameters"]["iterations"] for one in crf["each"]] == [5, 10, 10]
    assert f"takes {processor(far) / processor(crf):.2f} of the processor's time" in text
    near = peers("contrast")["rows"]["Potts, contrast weights"]
    assert f"it reaches {near['iou']:.2f}" in text
    numbers = [n for value in far["each"][0]["parameters"].values() for n in flat(value)]
    assert f"the {len(numbers)} of the last row" in text


def test_what_the_page_says_of_eight_classes():
    rows = peers("regions")["rows"]
    crf, far = rows["dense CRF"], rows["Potts, far neighbours"]
    assert f"{crf['iou']:.2f}" == f"{far['iou']:.2f}"
    ratio = f"takes {processor(far) / processor(crf):.2f} times"
    assert ratio in PAGE.replace("\n", " ")


def processor(row):
    return row["times"]["processor_least"]


def flat(value):
    return [n for one in value for n in flat(one)] if isinstance(value, list) else [value]


def test_the_upper_level_is_the_result_file_s():
    folder = SEGMENT.parent / "upper_level"
    run = script(folder / "run.py")
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert run.summary(found["rows"]) == found["summary"]
    assert run.markdown(found["summary"]) in (folder / "README.md").read_text(encoding="utf-8")
