"""The demo's page shows what the commands wrote, and nothing else."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "demo.py"


@pytest.fixture
def demo():
    spec = importlib.util.spec_from_file_location("demo_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _score(value):
    return {"mean": value, "std": 0.0, "each": [value]}


def test_the_page_shows_every_picture_and_score(demo, tmp_path, monkeypatch, capsys):
    commands = []

    def pretend(*command):
        commands.append(command)
        target = Path(command[command.index("--out") + 1]) if "--out" in command else None
        if command[:2] == ("legato", "toy"):
            (target / "figures").mkdir(parents=True)
            (target / "figures" / "toy.png").touch()
        elif command[:3] == ("legato", "segment", "table"):
            target.mkdir(parents=True)
            row = {"what": "a < b", "test": {"accuracy": _score(81.25), "iou": _score(67.5)}}
            (target / "results.json").write_text(json.dumps({"rows": {"global": row}}))
        elif command[:3] == ("legato", "segment", "compare"):
            target.parent.mkdir(parents=True)
            target.touch()
        else:
            picture = Path(command[-1])
            picture.parent.mkdir(parents=True)
            picture.touch()

    monkeypatch.setattr(demo, "run", pretend)
    monkeypatch.setattr(sys, "argv", ["demo.py", str(tmp_path / "out")])
    demo.main()
    page = tmp_path / "out" / "index.html"
    text = page.read_text(encoding="utf-8")
    shown = re.findall(r'<img src="([^"]+)"', text)
    assert sorted(shown) == [
        "readme/readme.png",
        "segment/figures/compare.jpg",
        "toy/figures/toy.png",
    ]
    assert all((page.parent / path).exists() for path in shown)
    assert "a &lt; b" in text
    assert "81.2 %" in text
    assert "67.5 %" in text
    assert capsys.readouterr().out.rstrip().endswith(str(page))
    assert len(commands) == 4


def test_a_failing_command_stops_the_demo(demo):
    with pytest.raises(SystemExit) as stopped:
        demo.run("python", "-c", "raise SystemExit(3)")
    assert stopped.value.code == 3
