"""The referee: right layers are sound, each wrong one is found by its law, and said in words."""

import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from legato.errors import InputError, LawError
from legato.testing import check_layer
from makers import randn

sys.path.insert(0, str(Path(__file__).parent))
from layers import RIGHT, WRONG, X


@pytest.mark.parametrize("name", RIGHT)
def test_right_layers_are_sound(name):
    case = RIGHT[name]
    report = check_layer(case.layer, case.inputs, **{"directions": 4} | case.options)
    assert report.state == "sound", report
    assert report.require(decided=True) is report


@pytest.mark.parametrize("name", WRONG)
def test_wrong_layers_are_found_by_their_law(name):
    law, words, case = WRONG[name]
    verdict = check_layer(case.layer, case.inputs, **{"directions": 4} | case.options)[law]
    assert verdict.state == "wrong", verdict
    assert re.search(words, verdict.words), verdict.words


def test_a_sum_that_is_constant_has_a_gradient_of_rounding():
    """Instance normalisation: its outputs add up to 0 whatever comes in."""
    layer = nn.Sequential(nn.Linear(5, 7), nn.Unflatten(-1, (1, 7)), nn.InstanceNorm1d(1))
    verdict = check_layer(layer.double(), randn(3, 5), directions=1)["layout and modes"]
    assert verdict.state == "sound", verdict


def test_the_error_of_a_right_gradient_is_that_of_the_differences():
    verdict = check_layer(torch.sin, X, directions=2)["gradient"]
    assert verdict.value < 1e-6


def test_any_seed_of_64_bits():
    layer = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).double()
    report = check_layer(layer, X, directions=1, seed=2**32 + 1)
    assert report.state == "sound", report


def test_a_batch_of_one_element_is_a_batch():
    verdict = check_layer(torch.sin, X[:1], batch=True, directions=1)["batch = elements"]
    assert verdict.state == "sound", verdict


def test_a_layer_that_changes_a_setting_of_torch_is_found():
    before = torch.are_deterministic_algorithms_enabled()

    def layer(x):
        torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled())
        return x.sin()

    try:
        verdict = check_layer(layer, X, directions=1)["side effects"]
    finally:
        torch.use_deterministic_algorithms(before)
    assert verdict.state == "wrong", verdict
    assert "deterministic algorithms" in verdict.words


def test_a_layer_that_leaves_gradients_switched_off_is_found():
    def layer(x):
        y = x.sin()
        torch.set_grad_enabled(False)
        return y

    with torch.enable_grad():
        verdict = check_layer(layer, X, directions=1)["side effects"]
        assert torch.is_grad_enabled()
    assert verdict.state == "wrong", verdict
    assert "gradients off" in verdict.words


def test_a_layer_that_sets_the_same_dtype_at_every_call_is_found():
    def layer(x):
        torch.set_default_dtype(torch.float64)
        return x.sin()

    before = torch.get_default_dtype()
    try:
        verdict = check_layer(layer, X, directions=1)["side effects"]
    finally:
        torch.set_default_dtype(before)
    assert verdict.state == "wrong", verdict
    assert "default dtype" in verdict.words


class Attention(nn.Module):
    """Softmax does not see what is added to all scores of a row: not the bias of the keys."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), x)


@pytest.mark.parametrize("seed", range(3))
def test_a_parameter_without_effect_has_a_gradient_of_rounding(seed):
    torch.manual_seed(seed)
    verdict = check_layer(Attention().double(), randn(2, 3, 4), directions=1)["batch = elements"]
    assert verdict.state == "sound", verdict


@pytest.mark.parametrize(
    "layer",
    [lambda x: x.tanh().squeeze(0), lambda x: x.sum(-1, keepdim=True).squeeze()],
    ids=["(1, n)", "(1, 1)"],
)
def test_the_axis_of_a_batch_of_one_has_to_stay(layer):
    verdict = check_layer(layer, X, directions=1)["batch = elements"]
    assert verdict.state == "wrong", verdict
    assert "its axis is lost" in verdict.words
    assert check_layer(lambda x: x @ x.mT, X, directions=1).sound  # which has no such axis


def test_a_report_raises_when_asked_and_shows_a_table():
    report = check_layer(lambda x: 2 * x.detach() - x, X, directions=1)
    assert not report.sound
    assert len(report.that_are("wrong")) == 1
    with pytest.raises(LawError, match=r"is wrong:\s+gradient: .*the sign is wrong"):
        report.require()
    lines = repr(report).splitlines()
    assert len(lines) == 1 + len(report.verdicts)
    assert lines[1].split()[:2] == ["gradient", "wrong"]


def test_a_batch_that_may_be_none_is_not_decided():
    report = check_layer(lambda x: x / x.norm(), X, directions=1)
    assert report.state == "not decided"
    assert "batch=True" in report["batch = elements"].words
    report.require()
    with pytest.raises(LawError, match="not decided"):
        report.require(decided=True)
    assert check_layer(lambda x: x / x.norm(), X, batch=False, directions=1).sound


def test_noise_is_not_decided():
    """As of a solver that stops early: no differences see through it, and that is said."""
    report = check_layer(lambda x: x.sin() + 0.03 * (1e9 * x).sin().detach(), X, directions=1)
    verdict = report["gradient"]
    assert verdict.state == "not decided"
    assert "hides the slope" in verdict.words


def test_where_the_layer_is_not_finite_nothing_is_decided():
    report = check_layer(torch.log, -X.abs())
    assert report.state == "not decided"
    assert len(report.verdicts) == 1


def test_infinity_that_vanishes_is_asked_about():
    """LAPACK has conventions of its own, and a sigmoid has limits: only NaN is clear."""
    report = check_layer(lambda x: 2 * torch.where(x.isinf(), 0.0, x), X, directions=1)
    assert report["NaN and infinity"].state == "not decided"
    assert "no limit of large inputs" in report["NaN and infinity"].words
    assert check_layer(torch.sigmoid, X, directions=1)["NaN and infinity"].state == "sound"


def test_kinks_are_no_faults_and_what_lies_beyond_them_is():
    x = torch.zeros(3, dtype=torch.float64)
    assert check_layer(lambda x: x.abs() + x.clamp(min=0), x).sound
    assert check_layer(lambda x: torch.relu(x) - torch.relu(-x), x)["gradient"].state == "wrong"


def test_a_module_stays_as_it_was():
    layer = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    x = X.float().requires_grad_()
    check_layer(layer, x, directions=1)
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())
    assert x.grad is None
    assert all(p.grad is None for p in layer.parameters())


def test_random_numbers_outside_are_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    check_layer(nn.Dropout(), X.float(), directions=1)
    assert torch.equal(before, torch.get_rng_state())


def test_the_same_seed_gives_the_same_report():
    first, again = (check_layer(torch.tanh, X, directions=3, seed=5) for _ in range(2))
    assert repr(first) == repr(again)


def test_solutions_and_their_adjoints():
    A, b = randn(5, 5) + 4 * torch.eye(5).double(), randn(5, 1)
    report = check_layer(
        torch.linalg.solve, (A, b), solution=A.inverse() @ b, residual=lambda x, A, b: A @ x - b
    )
    assert report["solution"].state == "sound"
    assert report["solution"].value < 1e-10
    singular = check_layer(
        lambda A, b: torch.cat([torch.linalg.solve(A, b), b[:1]]),
        (A, b),
        residual=lambda x, A, b: A @ x[:5] - b,
        directions=1,
    )
    assert singular["solution"].state == "not decided"


def test_powers_of_the_scale():
    def prox(x, w):
        return x.sign() * torch.relu(x.abs() - w)

    inputs = (X, torch.tensor(0.3).double())
    assert check_layer(prox, inputs, scale=1.0, directions=1)["scale"].state == "sound"
    assert check_layer(prox, inputs, scale=((1, 0), 1), directions=1)["scale"].state == "wrong"
    with pytest.raises(InputError, match="states 1 powers for 2 inputs"):
        check_layer(prox, inputs, scale=((1,), 1))


def test_what_follows_from_hidden_state_is_noted():
    case = WRONG["hidden state"][2]
    assert "other verdicts may follow" in repr(check_layer(case.layer, case.inputs, directions=1))


def test_warnings_of_the_layer_are_noted():
    def loud(x):
        warnings.warn("not converged", UserWarning, stacklevel=1)
        return x.sin()

    assert check_layer(loud, X, directions=1).notes == ("the layer warned: UserWarning",)


@pytest.mark.parametrize(
    ("layer", "inputs", "words"),
    [
        (torch.sin, torch.arange(3), "no floating-point tensor"),
        (torch.sin, torch.tensor([1.0, torch.nan]), "Input 1 holds NaN"),
        (lambda x: x.argmax(), X, "returns no floating-point tensor"),
        (lambda x: x @ torch.ones(3), X, "cannot be called with these inputs: RuntimeError"),
        (torch.sin, (X, torch.ones(2, dtype=torch.complex64)), "must be real"),
    ],
)
def test_what_cannot_be_checked_is_said(layer, inputs, words):
    with pytest.raises(InputError, match=words):
        check_layer(layer, inputs)


def test_bounds_are_one_for_each_input():
    with pytest.raises(InputError, match="2 bounds for 1 inputs"):
        check_layer(torch.sin, X, bounds=[None, (0, 1)])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_devices():
    assert check_layer(nn.Linear(6, 3), X.float())["device"].state == "sound"
