"""Long tests in chunks: shares of the time, what is finished is not run twice, one summary."""

from __future__ import annotations

import json

from kinds import KINDS, Kind
from run import Queue, limits_of
from summary import summarise
from tally import Tally
from worker import work


def _finished(folder, number, state, findings=None):
    folder.mkdir(parents=True, exist_ok=True)
    counts = {"problems": 50, "quota term: L1": 7}
    counts |= {f"findings: {kind}": len(found) for kind, found in (findings or {}).items()}
    content = {"state": state, "number": number, "seconds": 1.0, "counts": counts}
    (folder / f"{number:05d}.json").write_text(json.dumps({**content, "findings": findings or {}}))


def test_finished_chunks_of_this_state_are_skipped(tmp_path):
    _finished(tmp_path / "oracle", 0, "now")
    _finished(tmp_path / "oracle", 1, "before")
    queue = Queue({"oracle": Kind("oracle.chunks", 4, 1.0)}, {"oracle": 4}, tmp_path, ["now"])
    assert queue.left["oracle"] == [1, 2, 3]


def test_findings_of_an_earlier_state_are_looked_for_again_and_not_forgotten(tmp_path):
    _finished(tmp_path / "oracle", 0, "before")
    _finished(tmp_path / "oracle", 1, "before", {"false alarm": ["old", "older"]})
    _finished(tmp_path / "oracle", 2, "long ago")
    kinds, states = {"oracle": Kind("oracle.chunks", 4, 1.0)}, ["now", "before"]
    queue = Queue(kinds, {"oracle": 4}, tmp_path, states)
    assert queue.left["oracle"] == [1, 2, 3]
    _finished(tmp_path / "oracle", 1, "now")
    content = summarise(tmp_path, KINDS, states)
    assert content["summary"]["problems"] == 100
    assert content["summary"]["findings"] == 0
    assert content["summary"]["findings_of_earlier_states"] == 2
    assert content["parts"]["oracle"]["chunks by state"] == {"before": 1, "now": 1}
    assert content["parts"]["oracle"]["findings of earlier states"] == {"false alarm": 2}


def test_every_kind_gets_its_share(tmp_path):
    kinds = {"a": Kind("a", 100, 0.75, block=1), "b": Kind("b", 100, 0.25, block=1)}
    queue = Queue(kinds, {"a": 100, "b": 100}, tmp_path, ["now"])
    for _ in range(80):
        name, numbers = queue.take()
        assert len(numbers) == 1
        queue.took(name, 9.0)
    assert queue.spent["a"] == 600
    assert queue.spent["b"] == 200


def test_a_run_has_as_many_chunks_as_problems_are_asked_for():
    assert limits_of({"oracle": KINDS["oracle"]}, 20_000) == {"oracle": 400}


def test_the_summary_adds_up(tmp_path):
    _finished(tmp_path / "oracle", 0, "now", {"false alarm": ["one", "two"]})
    _finished(tmp_path / "oracle", 1, "now")
    _finished(tmp_path / "oracle", 2, "before", {"false alarm": ["old"]})
    content = summarise(tmp_path, KINDS, ["now"])
    assert (
        content["summary"]["problems"] == content["summary"]["problems_against_the_oracle"] == 100
    )
    assert content["summary"]["findings"] == content["summary"]["false_alarms"] == 2
    part = content["parts"]["oracle"]
    assert part["quotas"] == {"term: L1": 14}
    assert part["findings"] == {"false alarm": ["one", "two"]}


def test_a_worker_leaves_a_file_for_each_chunk(tmp_path, monkeypatch):
    import extremes

    def chunk(number: int, tally: Tally) -> None:
        tally.count("numbers", number)

    monkeypatch.setattr(extremes, "chunk", chunk)
    (tmp_path / "running").mkdir()
    work("extremes", tmp_path, "now", 60.0, [3, 5])
    found = {p.name: json.loads(p.read_text()) for p in tmp_path.glob("*.json")}
    assert {name: one["counts"] for name, one in found.items()} == {
        "00003.json": {"numbers": 3},
        "00005.json": {"numbers": 5},
    }
