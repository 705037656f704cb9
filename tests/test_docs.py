"""The programs in docs/**/*.md run as printed, those of a page one after another.

What is fenced as ``python`` runs; other libraries' code is fenced as a ``code-block`` and does not.
A ``text`` block that follows a program shows what it prints: words as they are, numbers to 2 %.
"""

import re
import warnings
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PROGRAM = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", flags=re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
PAGES = {
    page.relative_to(DOCS).as_posix(): PROGRAM.findall(page.read_text(encoding="utf-8"))
    for page in sorted(DOCS.rglob("*.md"))
}
WITH_PROGRAMS = [name for name, programs in PAGES.items() if programs]


def assert_same(said, shown):
    words = [" ".join(NUMBER.sub("#", text).split()) for text in (said, shown)]
    assert words[0] == words[1]
    found, expected = ([float(n) for n in NUMBER.findall(text)] for text in (said, shown))
    assert found == pytest.approx(expected, rel=0.02, abs=2e-4)


def test_there_are_programs():
    assert {"upper_level.md", "start.md", "write_your_own.md", "coming_from.md"} <= {*WITH_PROGRAMS}
    assert {"troubleshooting.md", "your_problem.md", "index.md"} <= {*WITH_PROGRAMS}


def test_other_results_are_told_apart():
    assert_same("loss 0.2781 after 20", "loss 0.278 after 20")
    for other in ("loss 0.31 after 20", "a loss 0.278 after 20", "loss 0.278 after 21"):
        with pytest.raises(AssertionError):
            assert_same(other, "loss 0.278 after 20")


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # Lightning's own business
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*number of training batches.*")
@pytest.mark.parametrize("page", WITH_PROGRAMS)
def test_programs_run(page, capsys):
    names = {"__name__": "__main__"}
    with warnings.catch_warnings():  # one page shows how to turn warnings into errors
        for number, (program, shown) in enumerate(PAGES[page], start=1):
            capsys.readouterr()
            exec(compile(program, f"{page}, program {number}", "exec"), names)
            if shown:
                assert_same(capsys.readouterr().out, shown)
    for label, fitted in names.get("results", {}).items():
        first, last = fitted.history.loss[0], fitted.history.loss[-1]
        assert last < 0.9 * first, label
