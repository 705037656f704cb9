"""The site builds without a warning, and holds what it promises."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

PAGES = [
    "index", "start", "guide", "mathematics", "which_gradient", "write_your_own", "upper_level",
    "coming_from", "many_gpus", "evidence", "paper", "differences", "performance", "race",
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
