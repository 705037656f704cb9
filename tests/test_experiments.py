"""What the experiments' pages say is what their result files hold."""

import json
import re
from pathlib import Path

import pytest

SEGMENT = Path(__file__).parents[1] / "experiments" / "segment"
PAGE = (SEGMENT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_the_result_file_s():
    pytest.importorskip("rich")
    from legato.cli.segment.table_text import markdown

    rows = json.loads((SEGMENT / "table" / "results.json").read_text(encoding="utf-8"))["rows"]
    assert markdown(rows) in PAGE


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
