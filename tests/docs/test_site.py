"""The built site in a real browser: it loads, it is quiet, it can be searched and read anywhere."""

import functools
import http.server
import shutil
import threading
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest

selenium = pytest.importorskip("selenium", reason="the browser is driven by selenium: legato[docs]")

from selenium import webdriver  # noqa: E402  (after the check that it is there)
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.skipif(
        BROWSER is None or DRIVER is None,
        reason="no chromium with chromedriver on this machine (Debian: chromium, chromium-driver)",
    ),
    # One browser serves all tests; with pytest-xdist they stay in one process.
    pytest.mark.xdist_group("browser"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

VISITED = [
    "index", "start", "guide", "your_problem", "mathematics", "which_gradient", "troubleshooting",
    "glossary", "write_your_own", "referee", "upper_level", "coming_from", "many_gpus", "about",
    "cite", "changelog", "evidence", "paper", "differences", "performance", "race",
    "scaling", "gallery/index", "api/index", "api/functions", "api/gradients", "api/nn",
    "api/optim", "api/bilevel", "api/sklearn", "api/studies",
]  # fmt: skip


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(site):
    handler = functools.partial(QuietHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = Options()
    options.binary_location = BROWSER
    for flag in (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--disable-dev-shm-usage", "--window-size=1280,900",
        # Nothing but this machine can be reached: what works here works without a network.
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def complaints(browser):
    return [
        entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
    ]


@pytest.fixture
def telephone(browser):
    """A window of 400 pixels."""
    narrow = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_pages_load_without_complaints_and_are_readable_on_a_telephone(telephone, address):
    """Nothing sticks out of a narrow page; what is wide scrolls inside its own box."""
    telephone.get_log("browser")
    for page in VISITED:
        telephone.get(f"{address}{page}.html")
        wait = WebDriverWait(telephone, 30)  # a busy machine draws late
        assert wait.until(lambda b: b.find_elements(By.TAG_NAME, "h1"), page)[0].text, page
        assert not complaints(telephone), page
        width, size = telephone.execute_script(
            "return [document.documentElement.scrollWidth,"
            " parseFloat(getComputedStyle(document.querySelector('article p') ||"
            " document.body).fontSize)]"
        )
        assert width <= 400, page
        assert size >= 14, page


def test_pictures_are_there(browser, address):
    for page in ("index", "paper", "scaling", "gallery/index"):
        browser.get(f"{address}{page}.html")
        pictures = browser.find_elements(By.CSS_SELECTOR, "article img")
        assert pictures, page
        for picture in pictures:
            browser.execute_script("arguments[0].loading = 'eager'", picture)
        WebDriverWait(browser, 20).until(
            lambda b: b.execute_script(
                "return [...document.querySelectorAll('article img')].every(i => i.complete)"
            )
        )
        broken = browser.execute_script(
            "return [...document.querySelectorAll('article img')]"
            ".filter(i => !i.naturalWidth).map(i => i.src)"
        )
        assert not broken, page


def test_mathematics_is_drawn(browser, address):
    """A fraction is taller than its parts, and a limit stands below its operator."""
    browser.get(f"{address}mathematics.html")
    heights = browser.execute_script(
        "return [...document.querySelectorAll('article math')]"
        ".map(m => m.getBoundingClientRect().height)"
    )
    assert len(heights) > 20
    assert min(heights) > 5
    top, bottom = browser.execute_script(
        "const f = document.querySelector('mfrac');"
        "return [f.children[0].getBoundingClientRect().bottom,"
        "        f.children[1].getBoundingClientRect().top]"
    )
    assert top <= bottom + 1
    operator, limit = browser.execute_script(
        "const u = [...document.querySelectorAll('math[display=block] munder')]"
        "  .find(u => u.firstElementChild.textContent == 'min');"
        "return [...u.children].map(c => c.getBoundingClientRect().top)"
    )
    assert operator < limit


def test_search_finds_a_class(browser, address):
    browser.get(f"{address}search.html?q=Implicit")
    WebDriverWait(browser, 30).until(
        lambda b: b.find_elements(By.CSS_SELECTOR, "#search-results li a")
    )
    found = browser.find_elements(By.CSS_SELECTOR, "#search-results li a")
    assert any("gradients" in (link.get_attribute("href") or "") for link in found)
    assert any("Implicit" in link.text for link in found)


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("deblurring", "your_problem"),
        ("slow convergence", "troubleshooting"),
        ("isotropic", "your_problem"),
        ("citation", "cite"),
        ("glossary", "glossary"),
        ("piggyback", "glossary"),
    ],
)
def test_search_finds_what_newcomers_ask_for(browser, address, words, page):
    browser.get(f"{address}search.html?q={words.replace(' ', '+')}")
    WebDriverWait(browser, 30).until(
        lambda b: any(
            page in (link.get_attribute("href") or "")
            for link in b.find_elements(By.CSS_SELECTOR, "#search-results li a")
        )
    )


def test_mathematics_has_its_font(browser, address):
    browser.get(f"{address}mathematics.html")
    loaded = browser.execute_async_script(
        "const done = arguments[0];"
        "document.fonts.ready.then(() => done("
        "  [...document.fonts].filter(f => f.family.includes('Latin Modern Math'))"
        "    .map(f => f.status)))"
    )
    assert loaded == ["loaded"]


def test_the_column_that_says_what_went_wrong_is_in_sight(browser, address):
    """On the race's page, in a window of ordinary width and without scrolling a table."""
    browser.get(f"{address}race.html")
    places = browser.execute_script(
        "return [...document.querySelectorAll('article table')].map(t => ["
        "  t.getBoundingClientRect().right,"
        "  [...t.querySelectorAll('th')].find(h => h.textContent.trim() == 'says')"
        "    .getBoundingClientRect().right])"
    )
    assert len(places) > 5
    assert all(says <= table for table, says in places)


class Links(HTMLParser):
    """What a page points to, and the places in it that can be pointed to."""

    def __init__(self, text):
        super().__init__()
        self.targets, self.anchors = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if values.get("id"):
            self.anchors.add(values["id"])
        for name in ("href", "src"):
            if values.get(name):
                self.targets.add(values[name])


def test_no_dead_links(site):
    pages = {
        page.relative_to(site).as_posix(): Links(page.read_text(encoding="utf-8"))
        for page in site.rglob("*.html")
        if "_static" not in page.parts  # the theme's own templates lie there
    }
    dead = []
    for name, page in pages.items():
        for target in page.targets:
            if urlparse(target).scheme in ("http", "https", "mailto", "data", "javascript"):
                continue
            path, anchor = urldefrag(urljoin(f"/{name}", target))
            path = unquote(urlparse(path).path).lstrip("/")
            if not (site / path).exists():
                dead.append(f"{name} → {target}")
            elif anchor and path in pages and unquote(anchor) not in pages[path].anchors:
                dead.append(f"{name} → {target} (no such place)")
    assert not dead
