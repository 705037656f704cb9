"""What the documentation says of all long runs is what their files add up to."""

from __future__ import annotations

import json

from totals import RESULTS, totals


def test_the_totals_are_those_of_the_files():
    assert json.loads((RESULTS / "stress_totals.json").read_text()) == totals()
