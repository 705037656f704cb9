"""Bad input to the diagnosis gets a named error that says what happened, why, and what to try."""

import pytest
import torch

import legato as lg
from error_words import raises
from legato import errors
from makers import randn

A, b = randn(8, 5, seed=1), randn(8, seed=2)


def weight(value=0.7):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def lasso(w):
    return lg.Composite(lg.LeastSquares(A, b), lg.L1(w))


def diagnose(problem, loss=lambda x: x.sum(), **options):
    return lg.diagnose(problem, lg.ForwardBackward(), loss, **options)


def test_a_loss_that_does_not_see_the_solution():
    w = weight()
    for loss in (lambda x: w**2, lambda x: x.detach().sum(), lambda x: torch.tensor(1.0)):
        with raises(errors.InputError, "does not depend on the solution", "detach"):
            diagnose(lasso(w), loss)


def test_a_loss_that_is_no_number():
    with raises(errors.InputError, "one number", r"shape \(5,\)", "sum"):
        diagnose(lasso(weight()), lambda x: x)
    with raises(errors.InputError, "one number", "float"):
        diagnose(lasso(weight()), lambda x: x.detach().sum().item())
    with raises(errors.InputError, "function of the solution, not Tensor", "lambda"):
        diagnose(lasso(weight()), torch.tensor(1.0))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite(bad):
    with raises(errors.NonFiniteLossError, "loss is (nan|-?inf)", "overflow"):
        diagnose(lasso(weight()), lambda x: x.sum() * bad)


def test_a_loss_whose_gradient_is_not_finite():
    target = lg.solve(lasso(0.7), lg.ForwardBackward()).x
    with raises(errors.NonFiniteLossError, "gradient of the loss", "sqrt"):
        diagnose(lasso(weight()), lambda x: (x - target).square().sum().sqrt())


def test_parameters_that_do_not_influence_the_loss():
    w = weight()
    with raises(errors.NoInfluenceError, r"params\[1\]", r"\(3,\)", "copy"):
        diagnose(lasso(w), params=[w, randn(3).requires_grad_()])
    with raises(errors.NoInfluenceError, "No tensor behind the solution", "requires_grad_"):
        diagnose(lasso(0.7))
    with raises(errors.NoInfluenceError, "No tensor behind the solution"):
        diagnose(lasso(0.7), lambda x: w * x.sum())  # θ in the loss only


def test_parameters_of_the_wrong_kind():
    w = weight()
    with raises(errors.InputError, r"params\[0\] does not require a gradient", "requires_grad_"):
        diagnose(lasso(w), params=w.detach())
    with raises(errors.InputError, r"params\[0\] is no tensor"):
        diagnose(lasso(w), params=["w"])
    with raises(errors.InputError, "params is empty"):
        diagnose(lasso(w), params=[])


def test_settings():
    for tol in (0.0, 1.0, -1e-3):
        with raises(errors.InputError, "relative error"):
            diagnose(lasso(weight()), tol=tol)
    with raises(errors.InputError, "reference must be a Stop, not int"):
        diagnose(lasso(weight()), reference=1000)
    with raises(errors.InputError, "stop must be a Stop"):
        diagnose(lasso(weight()), stop=100)
    with raises(errors.InputError, "There is no loss"):
        lg.diagnose(lg.SquaredNorm())  # an energy is callable, too
    with raises(errors.InputError, "directions"):
        diagnose(lasso(weight()), directions=-1)
    with raises(errors.InputError, "algorithm must be", "ForwardBackward"):
        lg.diagnose(lasso(weight()), lg.ForwardBackward, lambda x: x.sum())
    with raises(errors.InputError, "gradients is empty"):
        diagnose(lasso(weight()), gradients=[])
    with raises(errors.InputError, r"gradients\[0\]", "the class Unroll", r"Unroll\(\)"):
        diagnose(lasso(weight()), gradients=[lg.Unroll])


def test_a_diverging_solve_is_reported_as_such():
    runaway = lg.Composite(lg.Smooth(lambda x: 0.5 * weight() * x**2))
    with raises(errors.DivergenceError, "smaller step"):
        lg.diagnose(
            runaway,
            lg.ForwardBackward(1e10),
            lambda x: x.sum(),
            torch.ones(3).double(),
        )


# --- factories ------------------------------------------------------------------------------------


def make(dtype, data=A, fixed=None):
    dtype = fixed or dtype
    w = torch.tensor(0.7, dtype=dtype, requires_grad=True)
    problem = lg.Composite(lg.LeastSquares(data.to(dtype), b.to(dtype)), lg.L1(w))
    return problem, lg.ForwardBackward(), lambda x: x.sum()


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda dtype: make(dtype)[:2], "2 values"),
        (lambda dtype: None, "NoneType"),
        (lambda dtype: list(make(dtype)), "list"),
        (lambda: make(torch.float64)[0], "Composite"),
    ],
)
def test_a_factory_that_returns_something_else(returned, words):
    with raises(errors.InputError, "returned " + words, r"\(problem, algorithm, loss\)", "x0"):
        lg.diagnose(returned)


@pytest.mark.parametrize("fixed", [torch.float32, torch.float64])
def test_a_factory_that_does_not_compute_in_the_dtype_it_is_given(fixed):
    with raises(errors.InputError, rf"make\(.*\) gives an iteration in {fixed}", "no argument"):
        lg.diagnose(lambda dtype: make(dtype, fixed=fixed))


def test_a_factory_whose_loss_is_in_another_dtype():
    def coarse_loss(dtype):
        return *make(dtype)[:2], lambda x: x.sum().float()

    with raises(errors.InputError, r"coarse_loss\(torch.float64\) gives a loss in torch.float32"):
        lg.diagnose(coarse_loss)


def test_a_factory_whose_parameters_stay_in_single_precision():
    w = torch.tensor(0.7, requires_grad=True)

    def shared(dtype):
        data = lg.LeastSquares(A.to(dtype), b.to(dtype))
        return lg.Composite(data, lg.L1(w.to(dtype))), lg.ForwardBackward(), lambda x: x.sum()

    with raises(errors.InputError, "from a parameter in torch.float32", "requires_grad_"):
        lg.diagnose(shared)


def test_a_factory_that_makes_two_different_problems():
    seeds = iter(range(9))
    with raises(errors.InputError, "not the same problem", "the loss", "fixed seed"):
        lg.diagnose(lambda dtype: make(dtype, randn(8, 5, seed=next(seeds))))
    values = iter((0.1, 0.2))

    def drawn(dtype):
        w = torch.tensor(next(values), dtype=dtype, requires_grad=True)
        return lg.Composite(make(dtype)[0].smooth, lg.L1(w)), lg.ForwardBackward(), torch.sum

    with raises(errors.InputError, "not the same problem", "the parameters", "fifth value"):
        lg.diagnose(drawn)


def test_a_factory_whose_loss_is_a_value():
    with raises(errors.InputError, "function of the solution, not Tensor", "lambda"):
        lg.diagnose(lambda dtype: (*make(dtype)[:2], torch.tensor(1.0)))


def test_what_does_not_go_with_a_factory_or_without_one():
    with raises(errors.InputError, "no loss", r"diagnose\(make\)"):
        lg.diagnose(lasso(weight()), lg.ForwardBackward())
    with raises(errors.InputError, "no loss"):
        lg.diagnose(lasso(weight()))
    with raises(errors.InputError, "x0 and params belong to one precision", "return"):
        lg.diagnose(make, x0=b[:5])
    with raises(errors.InputError, "takes a dtype", "float64"):
        lg.diagnose(lambda: make(torch.float32), dtype=torch.float64)
    with raises(errors.InputError, "takes a dtype", "as it is", "leave dtype out"):
        diagnose(lasso(weight()), dtype=torch.float64)
