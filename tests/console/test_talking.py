"""What a person reads when something goes wrong, or is interrupted."""

import warnings

import pytest
import torch
import typer

from legato._support.extras import how_to_install
from legato.console.options import device_of, listed, whole_numbers
from legato.console.talking import reporting_errors, say
from legato.errors import InputError


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("The [b]input[/b] is wrong."), 1, "error The [b]input[/b] is wrong."),
        (ModuleNotFoundError("no", name="lightning"), 1, how_to_install("studies")),
        (OSError(28, "No space left on device"), 1, "could not be read or written"),
        (torch.OutOfMemoryError("20 GiB"), 1, "Try a smaller --batch"),
        (KeyboardInterrupt(), 130, "Come back later."),
        (SystemExit(143), 143, "Come back later."),
    ],
)
def test_errors_are_sentences(error, code, words, capsys):
    with pytest.raises(typer.Exit) as raised, reporting_errors("Come back later."):
        raise error
    assert raised.value.exit_code == code
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ModuleNotFoundError("no", name="legato")])
def test_bugs_stay_bugs(error):
    with pytest.raises(type(error)), reporting_errors():
        raise error


def test_warnings_are_sentences_too(capsys):
    with reporting_errors():
        warnings.simplefilter("always")
        warnings.warn("[odd] but harmless", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning [odd] but harmless\n"


def test_lines_are_said_as_they_are(capsys):
    long = "/a/path/[with]/brackets" * 20
    say(long)
    assert capsys.readouterr().out == long + "\n"


def test_values_of_options():
    assert listed(None) is None
    assert listed("a, b") == ["a", "b"]
    assert whole_numbers("--seeds", "1,2") == (1, 2)
    with pytest.raises(InputError, match=r"--seeds is a list such as 5,10,20, not 'one'"):
        whole_numbers("--seeds", "one")
    assert device_of("cpu") == "cpu"
    with pytest.raises(InputError, match="auto, cpu or cuda"):
        device_of("tpu")
