"""``legato explore`` from the outside; tests/browser has the page as it is served."""

import socket
import sys

import pytest
from typer.testing import CliRunner

from legato._support.extras import how_to_install
from legato.cli import app
from legato.studies.explore import command
from legato.studies.explore.command import free_port, is_loopback, shown_address


def explore(*args):
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["explore", *map(str, args)])


@pytest.fixture
def served(monkeypatch):
    """Where the page would have been served."""
    calls = []
    monkeypatch.setattr(command, "_serve", lambda host, port, *rest: calls.append((host, port)))
    return calls


def test_it_listens_on_this_machine_only(served):
    result = explore("--port", 0)
    assert result.exit_code == 0, result.output
    assert served[0][0] == "127.0.0.1"
    assert result.stderr == ""


def test_a_warning_where_others_can_reach_it(served):
    result = explore("--host", "0.0.0.0", "--port", 0)
    assert result.exit_code == 0, result.output
    assert "warning 0.0.0.0 can be reached from other machines" in result.stderr
    assert "without a password" in result.stderr
    assert served[0][0] == "0.0.0.0"


def test_a_port_that_is_taken(served):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        result = explore("--port", taken)
    assert result.exit_code == 0, result.output
    ((_, port),) = served
    assert port != taken
    assert f"Port {taken} is taken; using {port}." in result.output


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_a_host_that_is_not_ours(host, served):
    result = explore("--host", host)
    assert result.exit_code == 1
    assert f"error The page cannot be served at http://{host}:7860/" in result.stderr
    assert served == []


def test_a_port_that_does_not_exist(served):
    result = explore("--port", 70000)
    assert result.exit_code == 2
    assert served == []


def test_without_gradio(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("legato.studies.explore.")]:
        if not name.endswith(".command"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gradio", None)
    result = explore("--port", 0)
    assert result.exit_code == 1
    assert f"The page needs gradio: {how_to_install('explore')}" in result.stderr


def test_an_interrupt_while_it_starts_is_quiet(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_serve", interrupted)
    result = explore("--port", 0)
    assert result.exit_code == 0
    assert "Aborted" not in result.output + result.stderr


def test_help_teaches():
    result = explore("--help")
    assert result.exit_code == 0
    for word in ("--host", "--port", "this machine only", "smoothness", "Ctrl-C"):
        assert word in result.output


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.4", False),
        ("example.org", False),
    ],
)
def test_loopback(host, expected):
    assert is_loopback(host) is expected


def test_ports():
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        assert free_port("127.0.0.1", taken) != taken
    assert free_port("127.0.0.1", taken) == taken
    assert free_port("127.0.0.1", 0) > 0


def test_addresses_can_be_opened():
    assert shown_address("127.0.0.1", 80) == "http://127.0.0.1:80/"
    assert shown_address("0.0.0.0", 80) == "http://127.0.0.1:80/"
    assert shown_address("::1", 80) == "http://[::1]:80/"
    assert shown_address("::", 80) == "http://[::1]:80/"


# --- the page -------------------------------------------------------------------------------------


def test_pictures_and_curves_of_the_page(tmp_path):
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'legato[explore]'")
    from legato.studies.explore.gradients_tab import show as show_gradients
    from legato.studies.explore.segmentation_tab import show as show_segmentation

    said, photograph, cheap, potts, weights, energy, gap = show_segmentation(
        None, "Scene 2", 3, 2.0, 10.0, 20, "far apart"
    )
    assert "after <b>20</b> iterations" in said
    for picture in (photograph, cheap, potts, weights):
        assert picture.shape == (192, 256, 3)
        assert picture.dtype == "uint8"
    assert len({tuple(colour) for colour in potts.reshape(-1, 3)}) == 3
    for curve in (energy, gap):
        assert "<svg" in curve
        assert "currentColor" in curve
        assert "http-equiv" not in curve
    (tmp_path / "a.png").write_text("<b>no picture</b>")
    said, *rest = show_segmentation(str(tmp_path / "a.png"), None, 3, 2.0, 10.0, 20, "far apart")
    assert 'role="alert">a.png is not an image of a known format' in said
    assert all(value == {"__type__": "update"} for value in rest)

    said, loss, error, table = show_gradients("A", 0.1 + 0.2, 50, 10)
    assert "−0.172158" in said
    assert "<svg" in loss
    assert "<svg" in error
    assert table.count("<tr>") == 7
    said, *_ = show_gradients("A", 5.0, 50, 10)
    assert "theta lies between" in said
