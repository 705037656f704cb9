"""What was given in the place of something else, in words for an error."""

from __future__ import annotations

from torch import Tensor

_LONGEST = 80
"""Letters beyond which the kind of a thing says more than how it is written."""


def given(value: object) -> str:
    """A class by its name, a tensor by its shape, anything else as written if that is short."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    written = repr(value)
    telling = len(written) <= _LONGEST and not written.startswith("<") and "\n" not in written
    return written if telling else type(value).__name__


def meant(value: object) -> str:
    """The question that a class in the place of an object asks for, after a space; else nothing."""
    return f" Did you mean {value.__name__}()?" if isinstance(value, type) else ""
