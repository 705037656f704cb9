"""The figure of inner iterations: trainings side by side, and the search for r."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from legato.errors import InputError
from legato.studies.segment import iterations
from legato.studies.segment.data import SyntheticScenes
from legato.studies.segment.iterations import (
    IterationSettings,
    alike,
    run_iterations,
    search_balance,
    searched,
    slope,
    train_rows,
)

SCENES = SyntheticScenes(3, size=(32, 32))
SETTINGS = IterationSettings(counts=(3,), images=2, steps=4, seeds=(0, 1))


@pytest.mark.parametrize("average", [False, True])
def test_side_by_side_is_one_after_the_other(average, tmp_path):
    """Layers know no difference between a batch and its images, nor does Adam."""
    settings = replace(SETTINGS, averages=(average,))
    together = train_rows(settings, SCENES, "cpu", tmp_path / "both")
    alone = [
        train_rows(replace(settings, seeds=(s,)), SCENES, "cpu", tmp_path / f"{s}")[0]
        for s in (0, 1)
    ]
    for a, b in zip(together, alone, strict=True):
        assert a["seed"] == b["seed"]
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        torch.testing.assert_close(
            torch.tensor(a["losses"]), torch.tensor(b["losses"]), rtol=1e-4, atol=0
        )
    assert together[0]["losses"] != together[1]["losses"]
    assert len(set(together[0]["losses"])) == 4  # it learns


def test_what_a_folder_holds_is_not_computed_again(tmp_path, monkeypatch):
    settings = replace(SETTINGS, counts=(2, 3), averages=(True,))
    first = run_iterations(settings, SCENES, "cpu", tmp_path)
    assert [t["iterations"] for t in first["times"]] == [2, 3]
    assert all(t["milliseconds"] > 0 for t in first["times"])
    (tmp_path / "average-3.json").unlink()  # as if it had been interrupted there
    trained, train_row = [], iterations.train_row

    def counted(settings, count, *rest):
        trained.append(count)
        return train_row(settings, count, *rest)

    monkeypatch.setattr(iterations, "train_row", counted)
    monkeypatch.setattr(iterations, "time_row", lambda *_: pytest.fail("timed again"))
    assert run_iterations(settings, SCENES, "cpu", tmp_path) == first
    assert trained == [3]


def test_the_search_has_trainings_of_its_own():
    own = searched(replace(SETTINGS, steps=16, lr=0.05, averages=(False,)))
    assert own.steps == 8
    assert not set(own.seeds) & set(SETTINGS.seeds)
    found = search_balance(own, SCENES, "cpu", (0.2, 5.0))
    losses = {r: one["loss"] for r, one in found["tried"].items()}
    assert losses["0.2"] != losses["5.0"]
    assert found["balance"] == float(min(losses, key=losses.get))


def test_images_of_one_size():
    assert [s.name for s in alike(SCENES, 2)] == SCENES.names[:2]
    with pytest.raises(InputError, match="4 images of one size"):
        alike(SCENES, 4)


def test_the_slope_of_time():
    times = [{"iterations": n, "milliseconds": 3 + 0.5 * n} for n in (5, 10, 200)]
    assert slope(times) == pytest.approx(0.5)
    assert slope(times[:1]) is None
