"""The programs in docs/*.md run as printed."""

import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_programs_run(page):
    programs = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert programs
    for program in programs:
        names = {}
        exec(compile(program, page.name, "exec"), names)
        for label, fitted in names.get("results", {}).items():
            first, last = fitted.history.loss[0], fitted.history.loss[-1]
            assert last < 0.9 * first, label
