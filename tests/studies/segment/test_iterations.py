"""The figure of inner iterations."""

import pytest

from legato.errors import InputError
from legato.studies.segment.data import IGNORE, InMemory, Sample
from legato.studies.segment.iterations import IterationSettings, run_iterations

SETTINGS = IterationSettings(counts=(2, 12), images=2, steps=6, lr=3e-3)


@pytest.fixture(scope="module")
def results(study):
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("legato.nn.fused.choice.KernelRegistry.best", lambda *_: "reference")
        return run_iterations(SETTINGS, study.data, "cpu", lines.append), lines


def test_a_point_for_each_count_and_iterate(results, study):
    found, lines = results
    points = found["points"]
    keys = [(point["average"], point["iterations"]) for point in points]
    assert keys == [(False, 2), (False, 12), (True, 2), (True, 12)]
    assert len(lines) == 4
    assert found["images"] == study.data.names[:2]
    for point in points:
        assert 0.551445 <= point["loss"] <= 1.551445  # the paper's loss per pixel, 3 labels
        assert 0 <= point["accuracy"] <= 100
        assert len(point["losses"]) == 6
        assert point["losses"][-1] < point["losses"][0]


def test_every_point_has_its_time(results):
    assert all(point["milliseconds"] > 0 for point in results[0]["points"])


def test_the_same_seed_gives_the_same_points(results, study, monkeypatch):
    monkeypatch.setattr("legato.nn.fused.choice.KernelRegistry.best", lambda *_: "reference")
    again = run_iterations(
        IterationSettings(counts=(2,), images=2, steps=6, lr=3e-3, averages=(False,)),
        study.data,
        "cpu",
    )["points"][0]
    first = results[0]["points"][0]
    for key in ("loss", "accuracy", "losses"):
        assert again[key] == first[key]


def test_too_few_images(study):
    with pytest.raises(InputError, match="9 images are needed, but there are 6"):
        run_iterations(IterationSettings(), study.data, "cpu")


def test_an_image_without_labels(study):
    blank = Sample(study.data[0].image, study.data[0].labels.new_full((32, 40), IGNORE), "blank")

    class Blank(InMemory):
        def __getitem__(self, index):
            return blank

    with pytest.raises(InputError, match="blank has no labelled pixel"):
        run_iterations(SETTINGS, Blank(study.data), "cpu")


@pytest.mark.parametrize(
    "change", [{"counts": ()}, {"counts": (0,)}, {"seeds": ()}, {"images": 0}, {"steps": 0}]
)
def test_settings_that_make_no_sense(change):
    with pytest.raises(InputError, match="positive"):
        IterationSettings(**change)
