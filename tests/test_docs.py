"""The programs in docs/**/*.md run as printed, those of a page one after another.

What is fenced as ``python`` runs; other libraries' code is fenced as a ``code-block`` and does not.
"""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PROGRAM = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
PAGES = {
    page.relative_to(DOCS).as_posix(): PROGRAM.findall(page.read_text(encoding="utf-8"))
    for page in sorted(DOCS.rglob("*.md"))
}
WITH_PROGRAMS = [name for name, programs in PAGES.items() if programs]


def test_there_are_programs():
    assert {"upper_level.md", "start.md", "write_your_own.md", "coming_from.md"} <= {*WITH_PROGRAMS}


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # Lightning's own business
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*number of training batches.*")
@pytest.mark.parametrize("page", WITH_PROGRAMS)
def test_programs_run(page):
    names = {"__name__": "__main__"}
    for number, program in enumerate(PAGES[page], start=1):
        exec(compile(program, f"{page}, program {number}", "exec"), names)
    for label, fitted in names.get("results", {}).items():
        first, last = fitted.history.loss[0], fitted.history.loss[-1]
        assert last < 0.9 * first, label
