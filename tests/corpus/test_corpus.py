"""Every case that was ever found wrong, as small as it could be made, held against the oracle.

A case that is not repaired yet says why in ``open``; once it is, that line goes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oracle.judge import judge

FOLDER = Path(__file__).parent / "cases"
CASES = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def _marked(name: str):
    reason = CASES[name].get("open")
    marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=False)]
    return pytest.param(name, marks=marks, id=name)


@pytest.mark.parametrize("name", [_marked(name) for name in CASES])
def test_case(name):
    verdict = judge(CASES[name]["recipe"])
    assert not verdict.findings, f"{CASES[name]['about']} {verdict.findings}"
    assert verdict.outcome in ("right", "refused"), verdict
    assert not verdict.undecided, "the oracle cannot tell: the case proves nothing"
