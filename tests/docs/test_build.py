"""The site builds without a warning, and holds what it promises."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import legato
from legato import errors

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

PAGES = [
    "index", "start", "guide", "your_problem", "mathematics", "which_gradient", "troubleshooting",
    "glossary", "write_your_own", "upper_level", "coming_from", "many_gpus", "about", "cite",
    "changelog", "evidence", "paper", "differences", "performance", "race",
    "scaling", "search", "genindex", "api/index",
]  # fmt: skip


def test_all_pages_are_there(site):
    missing = [page for page in PAGES if not (site / f"{page}.html").exists()]
    assert not missing


def test_mathematics_is_markup_and_not_a_script(site):
    page = (site / "mathematics.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<math[ >]", page)) > 20
    everything = "".join(p.read_text(encoding="utf-8") for p in site.rglob("*.html"))
    assert not re.search(r"<script[^>]*(?:mathjax|katex)", everything, flags=re.IGNORECASE)


def test_nothing_is_loaded_from_elsewhere(site):
    """No script, style, font or picture comes from another host."""
    remote = re.compile(
        r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["'](?:https?:)?//[^"']+"""
    )
    found = {
        f"{page.name}: {hit}"
        for page in site.rglob("*.html")
        for hit in remote.findall(page.read_text(encoding="utf-8"))
        if 'rel="canonical"' not in hit
    }
    assert not found


def test_every_gallery_script_has_a_page(site):
    scripts = sorted((ROOT / "examples" / "gallery").rglob("plot_*.py"))
    missing = [s.stem for s in scripts if not [*(site / "gallery").rglob(f"{s.stem}.html")]]
    assert not missing


def test_tables_come_from_result_files(site):
    from result_tables import GRADIENTS, load

    page = (site / "which_gradient.html").read_text(encoding="utf-8")
    for case in load(GRADIENTS)["problems"]:
        for row in case["rows"]:
            assert f"{row['times_forward']:.1f}" in page or f"{row['times_forward']:.0f}" in page
    assert "Not measured yet" not in page


def test_tables_have_full_rows():
    from result_tables import TABLES

    for name, make in TABLES.items():
        table = make()
        assert table.rows, name
        assert {len(row) for row in table.rows} == {len(table.head)}, name


def test_a_font_for_mathematics_comes_along(site):
    """A plain machine has none, and would set a dot or a script beside its letter."""
    fonts = site / "_static" / "fonts"
    (font,) = fonts.glob("*.woff2")
    assert font.read_bytes()[:4] == b"wOF2"
    assert font.stat().st_size < 500_000
    assert "GUST Font License" in (fonts / f"LICENSE-{font.stem}.txt").read_text(encoding="utf-8")
    style = (site / "_static" / "style.css").read_text(encoding="utf-8")
    assert f"fonts/{font.name}" in style


def test_the_version_is_in_the_header(site):
    for page in ("index", "gallery/index", "api/nn"):
        text = (site / f"{page}.html").read_text(encoding="utf-8")
        assert f'<span class="version">{legato.__version__}</span>' in text


class Prose(HTMLParser):
    """The text of a page's article, without code, formulas and signatures."""

    LEFT_OUT = ("code", "pre", "math", "script", "style", "title")

    def __init__(self, text):
        super().__init__()
        self.skipping, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        signature = tag == "dt" and "sig" in (dict(attributes).get("class") or "")
        closes = tag not in ("img", "br", "input", "link", "meta", "hr")
        if closes and (self.skipping or tag in self.LEFT_OUT or signature):
            self.skipping.append(tag)

    def handle_endtag(self, tag):
        if tag in self.skipping:
            while self.skipping.pop() != tag:
                pass

    def handle_data(self, data):
        if not self.skipping:
            self.text.append(data)


def test_no_formula_is_left_in_plain_text(site):
    """A_x is for the terminal; a page shows it with a small x."""
    raw = re.compile(r"(?<![\w.])[^\W\d_]_[^\W_](?![A-Za-z0-9_])|(?<!\w)\\\\?(?:sum|frac|theta)\b")
    found = [
        f"{page.relative_to(site)}: {hit}"
        for page in site.rglob("*.html")
        if "_static" not in page.parts
        for hit in raw.findall(" ".join(Prose(page.read_text(encoding="utf-8")).text))
    ]
    assert not found


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in vars(errors)
        if name.endswith(("Error", "Warning")) and name != "LegatoError"
    ],
)
def test_troubleshooting_has_every_warning_and_error(name, site):
    page = (site / "troubleshooting.html").read_text(encoding="utf-8")
    assert re.search(rf'href="api/errors.html#legato.errors.{name}"', page)


def test_the_citation_is_that_of_the_file(site):
    page = (site / "cite.html").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    (doi,) = re.findall(r"doi: (\S+)", citation)
    assert page.count(doi) == 2  # for BibTeX, and in the file
    text = (ROOT / "docs" / "cite.md").read_text(encoding="utf-8")
    assert f"version = {{{legato.__version__}}}" in text
    assert f"version: {legato.__version__}" in citation


def test_every_card_has_its_sentence(site):
    page = (site / "gallery" / "index.html").read_text(encoding="utf-8")
    scripts = [*(ROOT / "examples" / "gallery").rglob("plot_*.py")]
    sentences = re.findall(r'<div class="card-sentence">(.+?)</div>', page, flags=re.DOTALL)
    assert len(sentences) == len(scripts)
    assert "tooltip=" not in page
    sections = ("First steps", "Imaging", "Statistics", "Which gradient", "Extend")
    places = [page.index(f"<h2>{section}") for section in sections]
    assert places == sorted(places)


def test_pages_that_have_not_changed_are_not_run_again(tmp_path, monkeypatch):
    """By sphinx-gallery's own rule, which the build repeats to say what it will do."""
    sphinx_gallery = pytest.importorskip("sphinx_gallery.gen_rst")
    monkeypatch.syspath_prepend(ROOT / "docs")
    import build

    pages = sorted(build.GALLERY.rglob("plot_*.py"))
    kept = tmp_path / pages[0].relative_to(build.GALLERY)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(pages[0].read_bytes())
    assert build.unchanged(tmp_path) == []
    mark = kept.with_suffix(".py.md5")
    mark.write_text(sphinx_gallery.get_md5sum(kept, mode="t"))
    assert sphinx_gallery.md5sum_is_current(kept, mode="t")
    assert build.unchanged(tmp_path) == [pages[0].stem]
    mark.write_text("another")
    assert build.unchanged(tmp_path) == []
