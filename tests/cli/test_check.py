"""``legato check`` from the outside."""

import pytest
from typer.testing import CliRunner

from command_line import failed
from legato.cli import app

FILE = """
import torch

def right(x):
    return x.softmax(-1)

def sign(x):
    return 2 * x.detach() - x

def whole(x):
    return x / x.norm()

def two(x, w):
    return x * w

class Scaled(torch.nn.Module):
    def __init__(self, size=3):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * x

class Needy(torch.nn.Module):
    def __init__(self, size):
        super().__init__()

ready = Scaled(4)
inputs = torch.linspace(-1, 1, 12).reshape(3, 4).sin()

def pair():
    return torch.randn(2, 3), torch.randn(3)

def crash():
    return 1 / 0

number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "layers.py"
    path.write_text(FILE)
    return path


def check(*args):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, ["check", *map(str, args)])


def test_a_sound_layer(file):
    result = check(f"{file}:right")
    assert result.exit_code == 0, result.output
    assert "Sound: every law" in result.output
    for law in ("gradient at ties", "batch = elements", "NaN and infinity", "double backward"):
        assert law in result.output


def test_a_wrong_layer(file):
    result = check(f"{file}:sign", "--shape", "2,3")
    assert result.exit_code == 1, result.output
    assert "the sign is wrong" in result.output
    assert "Wrong: do not train" in result.output


def test_a_batch_that_is_not_known(file):
    result = check(f"{file}:whole", "--shape", "2,3")
    assert result.exit_code == 2, result.output
    assert "Not decided" in result.output
    assert "--no-batch" in result.output
    assert check(f"{file}:whole", "--shape", "2,3", "--no-batch").exit_code == 0
    assert check(f"{file}:whole", "--shape", "2,3", "--batch").exit_code == 1


def test_modules_and_classes_of_them(file):
    assert check(f"{file}:ready").exit_code == 0
    assert check(f"{file}:Scaled", "--shape", "2,3", "--dtype", "float32").exit_code == 0


def test_inputs_of_a_function_and_from_another_file(file, tmp_path):
    assert check(f"{file}:two", "--inputs", "pair").exit_code == 0
    other = tmp_path / "other.py"
    other.write_text("import torch\ngiven = (torch.ones(2, 3), torch.zeros(3))\n")
    assert check(f"{file}:two", "--inputs", f"{other}:given").exit_code == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("missing",), "has no function 'missing'. It defines: right, sign"),
        (("number",), "is of type int, not a function"),
        (("Needy", "--shape", "3"), "Name a layer that is ready"),
        (("right", "--inputs", "absent"), "has no 'absent'"),
        (("right", "--inputs", "number"), "is of type int, not a tensor"),
        (("right", "--inputs", "crash"), "crash() raised ZeroDivisionError"),
        (("right", "--inputs", "pair", "--shape", "3"), "not both"),
        (("right", "--shape", "3,x"), "--shape is a list"),
        (("right", "--shape", "3,0"), "each at least 1"),
        (("right", "--shape", "3", "--dtype", "int64"), "--dtype is float32 or float64"),
        (("two", "--shape", "3"), "cannot be called with these inputs"),
    ],
)
def test_what_can_be_wrong_with_a_call(file, args, words):
    name, *rest = args
    assert failed(check(f"{file}:{name}", *rest), words)


def test_without_inputs_it_says_how_to_give_them(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text("import torch\nlayer = torch.sin\n")
    assert failed(check(f"{path}:layer"), "--shape 4,10 or --inputs NAME")
    assert failed(check(f"{tmp_path}/absent.py:layer"), "There is no file")
