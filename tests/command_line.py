"""What the tests of all commands ask of them."""

from __future__ import annotations

from typing import Any


def failed(result: Any, *words: str) -> bool:
    """Exit code 1, one message on the error stream with these words, no traceback."""
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert "error" in result.stderr, result.stderr
    for word in words:
        assert word in result.stderr, f"{word!r} is not in: {result.stderr}"
    return True
