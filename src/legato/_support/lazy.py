"""Properties that are computed when they are first asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

T_co = TypeVar("T_co", covariant=True)


class lazy(cached_property[T_co]):  # noqa: N801
    """functools.cached_property without its lock.

    On Python 3.11 that lock is one for all objects of a class: a process forked while another
    thread computes such a property would wait for it for ever. Two threads that ask at once may
    both compute the value; one of them stays.
    """

    if not TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            known = instance.__dict__
            if self.attrname not in known:
                known[self.attrname] = self.func(instance)
            return known[self.attrname]
