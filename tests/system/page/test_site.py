"""The built site as it is read, on a phone and on a screen; a dead link fails its build."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.site.__main__ import sphinx
from gates.core import CODES
from schema.keys import RUNBOOKS
from tests.system.page.conftest import Opened

WIDTHS = (390, 1280)
# Where the theme puts the contents of a page beside it, or its list of pages away.
BETWEEN = (740, 1000, 1100, 1320, 1440, 1920)
# Of each kind of page one, and those with the widest tables.
PAGES = (
    "index", "start", "docs/runbooks/index", "docs/runbooks/serve", "docs/gates",
    "docs/gates/fabric-mtu", "docs/incidents", "docs/recipes", "docs/promises", "docs/glossary",
    "docs/reference/faults", "docs/reference/node", "docs/architecture", "docs/benchmarks",
    "docs/decisions", "CONTRIBUTING", "CHANGELOG",
)  # fmt: skip
SEEN = [(page, width) for page in PAGES for width in WIDTHS]
SEEN += [("docs/runbooks/serve", width) for width in BETWEEN]
DEAD = {
    "a page": "[a](other.md)",
    "a heading of another page": "[a](there.md#nowhere)",
    "a heading of its own": "[a](#nowhere)",
    "a picture": "![a](none.svg)",
    "a page in no list": "",
}


@pytest.fixture(params=SEEN, ids=str)
def opened(request: Any, browser: Any, site: Path) -> Iterator[Opened]:
    page, width = request.param
    found = Opened(browser, site / f"{page}.html", width, "light", folder=site)
    shot = site.with_name("shots") / f"{page.replace('/', '-')}-{width}.png"
    found.page.screenshot(path=shot)
    yield found
    found.page.context.close()


def test_it_asks_for_nothing_outside_says_nothing_and_does_not_scroll_sideways(
    opened: Opened,
) -> None:
    widths = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    assert (opened.asked, opened.said) == ([], [])
    wide, room = opened.page.evaluate(widths)
    assert wide <= room


def test_every_runbook_and_every_code_has_its_page(site: Path) -> None:
    assert len(RUNBOOKS) > 20 and len(CODES) > 100
    for folder, names in (("runbooks", RUNBOOKS), ("gates", CODES)):
        missing = [name for name in names if not (site / "docs" / folder / f"{name}.html").exists()]
        assert missing == []


def test_a_code_in_a_sentence_leads_to_its_page(browser: Any, site: Path) -> None:
    page = Opened(browser, site / "docs/runbooks/serve.html", 1280, "light", folder=site).page
    page.locator("a", has_text="engine-down").first.click()
    assert page.url.endswith("/docs/gates/engine-down.html")
    assert page.locator("h1").text_content().startswith("engine-down")


def test_the_search_finds_a_runbook_without_a_server(browser: Any, site: Path) -> None:
    page = Opened(browser, site / "search.html", 390, "dark", folder=site).page
    page.goto(f"{(site / 'search.html').as_uri()}?q=weights")
    page.locator("#search-results a[href*='runbooks/weights']").first.wait_for(timeout=20_000)


def test_bars_have_colours_in_both_schemes(browser: Any, site: Path) -> None:
    seen = set()
    for scheme in ("light", "dark"):
        page = Opened(browser, site / "docs/benchmarks.html", 390, scheme, folder=site).page
        bars = page.locator("figure.bars svg[role=img] .mark-rect path")
        assert bars.count() > 10
        seen.add(bars.first.evaluate("e => getComputedStyle(e).fill"))
    assert len(seen) == 2 and "none" not in seen and "rgb(0, 0, 0)" not in seen


def trial(folder: Path, text: str, listed: bool = True) -> int:
    """Sphinx on two pages, with our settings."""
    source = folder / "source"
    source.mkdir()
    tree = "```{toctree}\nthere.md\n```\n" if listed else ""
    (source / "index.md").write_text(f"# One\n\n[it](there.md#a-heading)\n\n{text}\n\n{tree}")
    (source / "there.md").write_text("# Two\n\n## A heading\n\nWords.\n")
    return sphinx(source, folder / "made")


def test_links_that_lead_somewhere_pass(tmp_path: Path) -> None:
    assert trial(tmp_path, "[b](there.md)") == 0


@pytest.mark.parametrize(("what", "text"), DEAD.items(), ids=DEAD)
def test_a_dead_link_fails_the_build(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], what: str, text: str
) -> None:
    assert trial(tmp_path, text, listed=what != "a page in no list") == 1
    assert "WARNING" in capfd.readouterr().err
