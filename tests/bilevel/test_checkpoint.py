"""Saved and taken up, a fit gives the same numbers; a foreign or damaged file is refused."""

from __future__ import annotations

import builtins
import errno
import functools

import pytest
import torch
from torch.nn import functional as F

import legato as lg
from legato import bilevel, optim
from legato.errors import CheckpointError, CheckpointWarning
from optim.data import normal

A, b = normal(30, 8, seed=1), normal(30, seed=2)
EXACT = {"gradient": lg.Implicit(lg.GMRES(tol=1e-10)), "stop": lg.Stop(5000, tol=1e-10)}


def tuning(theta, data=b, noise=0.0):
    def loss(inner):
        problem = lg.Composite(lg.LeastSquares(A[:20], data[:20]), lg.L1(F.softplus(theta)))
        x = inner.solve(problem, lg.ForwardBackward(), **EXACT).x
        shaken = x + noise * torch.randn(x.shape, dtype=x.dtype) if noise else x
        return ((A[20:] @ shaken - data[20:]) ** 2).mean()

    return loss


def start() -> torch.Tensor:
    return torch.zeros(8, dtype=torch.float64, requires_grad=True)


MAKERS = {
    "iPiano": functools.partial(optim.IPiano, prox=lg.Box(-3.0, 3.0)),
    "variable inertia": functools.partial(optim.IPiano, rule=optim.VariableMomentum()),
    "conjugate gradients": optim.NonlinearCG,
    "heavy ball": functools.partial(optim.HeavyBall, lr=0.5),
    "Adam": functools.partial(torch.optim.Adam, lr=0.1),
    "L-BFGS": functools.partial(torch.optim.LBFGS, max_iter=3, line_search_fn="strong_wolfe"),
}
INEXACT = {"exact": None, "HOAG": bilevel.HOAG(), "MAID": bilevel.MAID()}


DESCENDING = ("iPiano", "variable inertia", "conjugate gradients")
PAIRS = [
    pytest.param(MAKERS[m], INEXACT[i], id=f"{m}, {i}")
    for m in MAKERS
    for i in INEXACT
    if i != "MAID" or m in DESCENDING
]


@pytest.mark.parametrize(("make", "inexact"), PAIRS)
def test_resumes_to_the_same_numbers(tmp_path, make, inexact):
    straight = start()
    whole = bilevel.fit(tuning(straight), straight, make, 10, inexact=inexact)
    checkpoint = bilevel.Checkpoint(tmp_path / "fit.pt", every=2)
    stopped = start()
    bilevel.fit(tuning(stopped), stopped, make, 5, inexact=inexact, checkpoint=checkpoint)
    resumed = start()
    result = bilevel.fit(tuning(resumed), resumed, make, 10, inexact=inexact, checkpoint=checkpoint)
    assert torch.equal(resumed.detach(), straight.detach())
    for name in ("loss", "gradient_norm", "change", "inner_iterations", "evaluations", "tolerance"):
        assert getattr(result.history, name) == getattr(whole.history, name), name
    assert result.loss == pytest.approx(whole.loss, rel=1e-12)


def test_random_losses_resume_too(tmp_path):
    """Torch's random state is part of the checkpoint."""
    make = functools.partial(torch.optim.Adam, lr=0.1)
    torch.manual_seed(3)
    straight = start()
    bilevel.fit(tuning(straight, noise=0.1), straight, make, 8)
    checkpoint = bilevel.Checkpoint(tmp_path / "fit.pt")
    torch.manual_seed(3)
    stopped = start()
    bilevel.fit(tuning(stopped, noise=0.1), stopped, make, 4, checkpoint=checkpoint)
    torch.manual_seed(99)
    resumed = start()
    bilevel.fit(tuning(resumed, noise=0.1), resumed, make, 8, checkpoint=checkpoint)
    assert torch.equal(resumed.detach(), straight.detach())


def test_an_interrupted_fit_resumes_to_the_same_numbers(tmp_path):
    straight = start()
    bilevel.fit(tuning(straight), straight, optim.IPiano, 9)
    checkpoint = bilevel.Checkpoint(tmp_path / "fit.pt", every=1000)
    stopped, calls = start(), 0
    lasso = tuning(stopped)

    def loss(inner):
        nonlocal calls
        calls += 1
        if calls == 7:
            raise KeyboardInterrupt
        return lasso(inner)

    first = bilevel.fit(loss, stopped, optim.IPiano, 9, checkpoint=checkpoint)
    assert first.interrupted
    assert 0 < len(first.history) < 9
    resumed = start()
    bilevel.fit(tuning(resumed), resumed, optim.IPiano, 9, checkpoint=checkpoint)
    assert torch.equal(resumed.detach(), straight.detach())


def test_an_interrupt_before_the_first_loss_leaves_no_file(tmp_path):
    checkpoint = bilevel.Checkpoint(tmp_path / "fit.pt")
    theta = start()

    def loss(inner):
        raise KeyboardInterrupt

    assert bilevel.fit(loss, theta, optim.IPiano, 5, checkpoint=checkpoint).interrupted
    assert not checkpoint.path.exists()


def test_a_finished_fit_is_not_continued(tmp_path):
    checkpoint = bilevel.Checkpoint(tmp_path / "fit.pt")
    until = bilevel.Until(decrease=1e-3)
    theta = start()
    first = bilevel.fit(tuning(theta), theta, optim.IPiano, 50, until=until, checkpoint=checkpoint)
    again = start()
    second = bilevel.fit(tuning(again), again, optim.IPiano, 50, until=until, checkpoint=checkpoint)
    assert first.converged
    assert second.converged
    assert len(second.history) == len(first.history)
    assert torch.equal(again.detach(), theta.detach())
    assert second.loss == first.loss


def test_a_fit_that_came_to_rest_is_not_continued(tmp_path):
    """A quadratic in one parameter: the second step finds nothing to gain."""
    checkpoint = bilevel.Checkpoint(tmp_path / "fit.pt")

    def rest():
        theta = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)
        loss = lambda inner: (theta - 1).square().sum()  # noqa: E731
        return bilevel.fit(loss, theta, optim.NonlinearCG, 50, checkpoint=checkpoint)

    first = rest()
    assert first.converged
    assert first.reason == "the parameters do not move any more"
    again = rest()
    assert len(again.history) == len(first.history) < 50
    assert again.reason == first.reason


# --- files of others ------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    checkpoint = bilevel.Checkpoint(tmp_path / "fit.pt")
    theta = start()
    bilevel.fit(tuning(theta), theta, optim.IPiano, 3, checkpoint=checkpoint)
    return checkpoint


def test_a_checkpoint_of_other_data_is_refused(saved):
    theta = start()
    with pytest.raises(CheckpointError, match="another problem: its first loss was"):
        bilevel.fit(tuning(theta, data=b + 0.01), theta, optim.IPiano, 5, checkpoint=saved)
    assert torch.equal(theta.detach(), torch.zeros(8, dtype=torch.float64))


def test_unless_the_probe_is_left_out(saved):
    theta = start()
    blind = bilevel.Checkpoint(saved.path, probe=False)
    result = bilevel.fit(tuning(theta, data=b + 0.01), theta, optim.IPiano, 5, checkpoint=blind)
    assert len(result.history) == 5


def test_a_checkpoint_of_other_parameters_is_refused(saved):
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    with pytest.raises(CheckpointError, match=r"its parameters is \['\(8,\)"):
        bilevel.fit(tuning(theta), theta, optim.IPiano, 5, checkpoint=saved)


def test_a_checkpoint_of_another_optimiser_is_refused(saved):
    theta = start()
    with pytest.raises(CheckpointError, match="its optimizer is IPiano, not NonlinearCG"):
        bilevel.fit(tuning(theta), theta, optim.NonlinearCG, 5, checkpoint=saved)


def test_a_checkpoint_of_another_inexactness_is_refused(saved):
    theta = start()
    with pytest.raises(CheckpointError, match="inexactness is NoneType, not HOAG"):
        bilevel.fit(tuning(theta), theta, optim.IPiano, 5, checkpoint=saved, inexact=bilevel.HOAG())


@pytest.mark.parametrize("content", [b"", b"not a checkpoint"])
def test_a_damaged_file_is_refused(tmp_path, content):
    path = tmp_path / "fit.pt"
    path.write_bytes(content)
    theta = start()
    with pytest.raises(CheckpointError, match="cannot be read"):
        bilevel.fit(tuning(theta), theta, optim.IPiano, 5, checkpoint=bilevel.Checkpoint(path))


def test_some_other_file_of_torch_is_refused(tmp_path):
    path = tmp_path / "fit.pt"
    torch.save({"weights": torch.zeros(3)}, path)
    theta = start()
    with pytest.raises(CheckpointError, match="not a checkpoint of a fit"):
        bilevel.fit(tuning(theta), theta, optim.IPiano, 5, checkpoint=bilevel.Checkpoint(path))


# --- writing --------------------------------------------------------------------------------------


class FullDisk:
    """A file that takes a hundred bytes and then has no room left."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.file.close()

    def write(self, data):
        self.file.write(bytes(data[:100]))
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_old_checkpoint(saved, monkeypatch):
    before = saved.path.read_bytes()
    real = builtins.open

    def full(path, mode="r", *args, **kwargs):
        file = real(path, mode, *args, **kwargs)
        return FullDisk(file) if str(path).endswith(".part") else file

    monkeypatch.setattr(builtins, "open", full)
    theta = start()
    with pytest.warns(CheckpointWarning, match="No space left.*untouched"):
        result = bilevel.fit(tuning(theta), theta, optim.IPiano, 5, checkpoint=saved)
    monkeypatch.undo()
    assert len(result.history) == 5
    assert saved.path.read_bytes() == before
    assert list(saved.path.parent.iterdir()) == [saved.path]
    again = start()
    resumed = bilevel.fit(tuning(again), again, optim.IPiano, 5, checkpoint=saved)
    assert torch.equal(again.detach(), theta.detach())
    assert len(resumed.history) == 5


def test_a_crash_while_writing_leaves_the_old_checkpoint(saved, monkeypatch):
    before = saved.path.read_bytes()

    def crash(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("legato.bilevel.checkpoint.os.replace", crash)
    theta = start()
    with pytest.raises(KeyboardInterrupt):
        bilevel.fit(tuning(theta), theta, optim.IPiano, 5, checkpoint=saved)
    monkeypatch.undo()
    assert saved.path.read_bytes() == before
    assert list(saved.path.parent.iterdir()) == [saved.path]


def test_folders_are_made(tmp_path):
    theta = start()
    path = tmp_path / "runs" / "first" / "fit.pt"
    bilevel.fit(tuning(theta), theta, optim.IPiano, 2, checkpoint=bilevel.Checkpoint(str(path)))
    assert path.exists()
