"""``legato explore`` as a person meets it: in a real browser, without a network."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from urllib.parse import urlsplit

import numpy
import pytest
from PIL import Image

if find_spec("gradio") is None:  # importing it takes seconds, and only the command needs it
    pytest.skip("the page needs gradio: pip install 'legato[explore]'", allow_module_level=True)
pytest.importorskip("selenium", reason="the browser is driven by selenium")

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from legato.studies.explore.pictures import MAX_BYTES

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1280,1000",
)  # fmt: skip
PATIENCE = 60  # seconds, on a busy machine


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The command, started as a person would, and ended as one would: quietly, leaving nothing."""
    log, rest = tmp_path_factory.mktemp("server") / "log", tmp_path_factory.mktemp("rest")
    more = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8", "TMPDIR": str(rest)}
    with open(log, "w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "legato", "explore", "--port", "0"],
            stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **more},
            # A shell's background jobs, and all they start, are born deaf to Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 3 * PATIENCE
        while not (ready := re.search(r"Ready: (\S+)", log.read_text("utf-8"))):
            assert process.poll() is None, log.read_text("utf-8")
            assert time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(0.1)
        yield ready[1]
        assert list(rest.iterdir()) != []
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    said = log.read_text("utf-8").strip()
    assert said == f"Preparing the page …\nReady: {ready[1]}  (Ctrl-C ends)"
    assert list(rest.iterdir()) == []


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(chromium, address):
    """The page, freshly opened; afterwards: no errors on the console, nothing asked of others."""
    chromium.get("about:blank")
    chromium.get_log("performance")  # what the browser's own first page wanted
    chromium.get_log("browser")
    chromium.get(address)
    wait(chromium, lambda: shown(chromium, "potts"))
    yield chromium
    assert errors(chromium) == []
    assert outside(chromium.get_log("performance")) == set()


def errors(driver):
    """What the console calls an error since it was last read."""
    log = driver.get_log("browser")
    return [entry["message"] for entry in log if entry["level"] == "SEVERE"]


def outside(log):
    """Addresses beyond this machine that were requested."""
    events = (json.loads(entry["message"])["message"] for entry in log)
    urls = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert any(urlsplit(url).hostname == "127.0.0.1" for url in urls)
    inside = ("data", "blob", "about")
    return {
        url
        for url in urls
        if urlsplit(url).scheme not in inside and urlsplit(url).hostname != "127.0.0.1"
    }


def wait(driver, condition):
    return WebDriverWait(driver, PATIENCE, poll_frequency=0.1).until(lambda _: condition())


def shown(driver, name):
    """What a picture shows: its address, once it is loaded. A new picture has a new address."""
    return driver.execute_script(
        "const i = document.querySelector(`#${arguments[0]} img`);"
        "return i && i.complete && i.naturalWidth > 0 ? i.src : null", name,
    )  # fmt: skip


def text(driver, name):
    return driver.find_element(By.ID, name).text


def drawn(driver, name):
    return driver.find_element(By.CSS_SELECTOR, f"#{name} svg").get_attribute("outerHTML")


def press(driver, name, key, times):
    slider = driver.find_element(By.CSS_SELECTOR, f"#{name} input[type=range]")
    for _ in range(times):
        slider.send_keys(key)


def drop(driver, path):
    driver.find_element(By.CSS_SELECTOR, "#picture-file input[type=file]").send_keys(str(path))


def open_tab(driver, name, part):
    tabs = driver.find_elements(By.CSS_SELECTOR, "button[role=tab]")
    next(tab for tab in tabs if tab.text == name and tab.is_displayed()).click()
    wait(driver, lambda: driver.find_element(By.ID, part).is_displayed())


def open_gradients(driver):
    open_tab(driver, "Gradients", "methods")


def pixels_wide(driver):
    return driver.execute_script("return document.documentElement.scrollWidth")


# --- without a browser ----------------------------------------------------------------------------


def test_it_is_served_to_this_machine(address):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
    with urllib.request.urlopen(address, timeout=PATIENCE) as page:
        assert "legato explore" in page.read().decode()


def test_no_file_but_the_pages_own_is_given_away(address):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{address}gradio_api/file={__file__}", timeout=PATIENCE)
    with refused.value as answer:
        assert answer.code == 403


def test_large_uploads_are_refused_on_their_way_in(address):
    with pytest.raises(urllib.error.HTTPError) as refused:
        _upload(address, MAX_BYTES + 1)
    with refused.value as answer:
        assert answer.code == 413
        assert b"maximum allowed size" in answer.read()


# --- in the browser -------------------------------------------------------------------------------


def test_it_opens_with_something_to_see(page):
    for name in ("picture-shown", "cost-only", "potts", "weights"):
        assert shown(page, name)
    assert len({shown(page, name) for name in ("picture-shown", "cost-only", "potts")}) == 3
    for name in ("energy", "gap"):
        assert page.find_element(By.CSS_SELECTOR, f"#{name} svg").size["height"] > 100
    assert "Energy per pixel" in text(page, "segmentation-said")


def test_it_fits_a_telephone(page):
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True},
    )
    try:
        wait(page, lambda: page.execute_script("return window.innerWidth") <= 420)
        assert pixels_wide(page) <= 400
        assert page.find_element(By.CSS_SELECTOR, "#energy svg").size["width"] > 280
        open_gradients(page)
        assert pixels_wide(page) <= 400
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_picture_is_dropped_and_sliders_moved(page, tmp_path):
    before = {name: shown(page, name) for name in ("picture-shown", "cost-only", "potts")}
    rng = numpy.random.default_rng(0)
    halves = numpy.full((60, 90, 3), 60.0)
    halves[:, 45:] = 180
    noisy = (halves + 40 * rng.standard_normal(halves.shape)).clip(0, 255).astype("uint8")
    Image.fromarray(noisy).save(tmp_path / "halves.png")
    drop(page, tmp_path / "halves.png")
    wait(page, lambda: all(shown(page, n) not in (None, s) for n, s in before.items()))
    size = page.execute_script(
        "const i = document.querySelector('#potts img'); return [i.naturalWidth, i.naturalHeight]"
    )
    assert size == [90, 60]

    dropped, said = shown(page, "potts"), text(page, "segmentation-said")
    cheap, energy = shown(page, "cost-only"), drawn(page, "energy")
    press(page, "smoothness", Keys.ARROW_RIGHT, 20)
    wait(page, lambda: shown(page, "potts") not in (None, dropped))
    wait(page, lambda: text(page, "segmentation-said") != said)
    assert shown(page, "cost-only") == cheap  # smoothness is none of its business
    assert drawn(page, "energy") != energy

    page.find_element(By.CSS_SELECTOR, "#scene label:nth-of-type(3)").click()
    wait(page, lambda: shown(page, "cost-only") not in (None, cheap))
    assert "halves" not in text(page, "picture-file")


def test_what_cannot_be_read_gets_words(page, tmp_path):
    potts = shown(page, "potts")
    (tmp_path / "false.png").write_text("not a picture")
    drop(page, tmp_path / "false.png")
    wait(page, lambda: "false.png is not an image" in text(page, "segmentation-said"))
    assert shown(page, "potts") == potts


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("notes.txt", 10, "Invalid file type"),
        ("huge.png", MAX_BYTES + 1, "exceed the maximum allowed size of 20"),
    ],
)
def test_wrong_types_and_sizes_get_words(page, tmp_path, name, size, words):
    potts = shown(page, "potts")
    (tmp_path / name).write_bytes(bytes(size))
    drop(page, tmp_path / name)
    wait(page, lambda: words in page.find_element(By.TAG_NAME, "body").text)
    assert shown(page, "potts") == potts
    # A refused upload has no progress to ask for, which the console notes; nothing else.
    assert [m for m in errors(page) if "upload_progress" not in m and "Response" not in m] == []


def test_the_weight_of_total_variation_is_learned(page):
    open_tab(page, "Denoising", "learn")
    said, clean, curve = (
        text(page, "denoising-said"),
        shown(page, "denoised"),
        drawn(page, "quality"),
    )
    assert "dPSNR/dλ" in said
    assert "More weight would be better" in said
    page.find_element(By.ID, "learn").click()
    wait(page, lambda: "Learned in 12 steps" in text(page, "denoising-said"))
    assert "λ is about right" in text(page, "denoising-said")
    wait(page, lambda: shown(page, "denoised") not in (None, clean))
    assert drawn(page, "quality") != curve
    value = page.find_element(By.CSS_SELECTOR, "#weight input[type=number]").get_attribute("value")
    assert 0.05 < float(value) < 0.2  # the slider moves along


def test_gradients(page):
    open_gradients(page)
    assert "−0.172158" in text(page, "gradients-said")
    methods, curve = text(page, "methods"), drawn(page, "error")
    assert methods.count("Unroll(last=K)") == 2
    press(page, "back", Keys.ARROW_LEFT, 10)
    wait(page, lambda: text(page, "methods") != methods)
    wait(page, lambda: drawn(page, "error") != curve)
    press(page, "theta", Keys.ARROW_LEFT, 30)
    wait(page, lambda: "Clarke subdifferential" in text(page, "gradients-said"))
    assert "[−0.5, 0]" in text(page, "gradients-said")


def _upload(address, size):
    boundary = "a-line-that-does-not-occur"
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n'
        "Content-Type: image/png\r\n\r\n"
    )
    body = head.encode() + bytes(size) + f"\r\n--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    request = urllib.request.Request(f"{address}gradio_api/upload", body, headers)
    urllib.request.urlopen(request, timeout=PATIENCE)
