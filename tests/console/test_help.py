"""Help pages with any Typer: newer ones describe a type, older ones only name it."""

from types import SimpleNamespace

import pytest

from legato.console.help import plain


class Parameter(SimpleNamespace):
    param_type_name = "option"
    metavar = None


class Described(Parameter):
    def display_type(self, context):
        return f"<{self.described}>"


@pytest.mark.parametrize(
    ("described", "name", "shown"),
    [("int range", "integer range", "N"), ("float", "float", "NUMBER"), ("str", "text", "TEXT")],
)
def test_values_have_the_same_names(described, name, shown):
    named = Parameter(type=SimpleNamespace(name=name))
    newer = Described(described=described)
    parameters = [named, newer, Parameter(is_flag=True)]
    plain(SimpleNamespace(context_class=lambda command: None, get_params=lambda c: parameters))
    assert [p.metavar for p in parameters] == [shown, shown, ""]
