"""Errors that say the right words, in the right order."""

from __future__ import annotations

from typing import Any

import pytest


def raises(error: type[Exception], *words: str) -> Any:
    """As pytest.raises; the message holds these patterns one after another."""
    return pytest.raises(error, match="(?s)" + ".*".join(words))
