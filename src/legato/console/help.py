"""Help pages that show what a person types, not the types of Python."""

from __future__ import annotations

from typing import Any

_VALUES = {
    "int": "N",
    "integer": "N",
    "float": "NUMBER",
    "str": "TEXT",
    "text": "TEXT",
    "path": "PATH",
    "Path": "PATH",
    "file": "FILE",
    "directory": "DIR",
}


def plain(command: Any) -> Any:
    """The same command, and those below it: switches without a value, values in capitals."""
    context = command.context_class(command)
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.metavar or parameter.name.upper()
            parameter.display_type_rich = _nothing  # its name says what it is
        elif parameter.metavar is None:
            parameter.metavar = _value(parameter, context)
    for below in getattr(command, "commands", {}).values():
        plain(below)
    return command


def _nothing(ctx: Any) -> None:
    return None


def _value(parameter: Any, context: Any) -> str | None:
    if getattr(parameter, "is_flag", False):
        return ""
    shown = getattr(parameter, "display_type", None)  # older Typers name the type alone
    kind = parameter.type.name if shown is None else shown(context)
    kind = kind.strip("<>").removesuffix(" range")
    kind = kind.removeprefix("list[").removesuffix("]")
    return _VALUES.get(kind)
