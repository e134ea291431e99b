"""The pages as they are read: on a phone and on a screen, in light and dark, by everybody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.system.page.conftest import Opened

WIDTHS, SCHEMES = (390, 1280), ("light", "dark")
# What a chart draws: a line of each series, its marks, its intervals.
MARKS = ".mark-line path, .mark-symbol path, .mark-rule.role-mark line"


@pytest.fixture(params=[(name, width, scheme) for name in ("rig", "runs", "empty")
                        for width in WIDTHS for scheme in SCHEMES], ids=str)  # fmt: skip
def opened(request: Any, browser: Any, pages: Path) -> Iterator[Opened]:
    name, width, scheme = request.param
    found = Opened(browser, pages / f"{name}.html", width, scheme)
    found.page.screenshot(path=pages / f"{name}-{scheme}-{width}.png", full_page=True)
    yield found
    found.page.context.close()


def test_it_asks_for_nothing_says_nothing_and_does_not_scroll_sideways(opened: Opened) -> None:
    widths = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    assert (opened.asked, opened.said) == ([], [])
    wide, room = opened.page.evaluate(widths)
    assert wide <= room


def test_axe_finds_nothing_serious(opened: Opened) -> None:
    found = Axe().run(opened.page).response["violations"]
    bad = [(v["id"], v["nodes"][0]["target"]) for v in found
           if v["impact"] in ("serious", "critical")]  # fmt: skip
    assert bad == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("name", "charts"), [("rig", 6), ("runs", 1)])
def test_each_chart_has_marks_titles_and_units_that_can_be_seen(
    browser: Any, pages: Path, name: str, charts: int, scheme: str
) -> None:
    page = Opened(browser, pages / f"{name}.html", 1280, scheme).page
    figures = page.locator("figure").all()
    assert len(figures) == charts
    back = page.evaluate("getComputedStyle(document.querySelector('figure')).backgroundColor")
    for figure in figures:
        drawn = figure.locator("svg[role=img]")
        series = figure.locator(".keys li").count()
        assert drawn.locator(MARKS).count() >= series >= 2
        # marks, titles and numbers are no shade of the background
        for part in (MARKS, "text"):
            seen = drawn.locator(part).first.evaluate(
                "e => [getComputedStyle(e).fill, getComputedStyle(e).stroke]"
            )
            assert any(one not in (back, "none", "rgb(0, 0, 0)") for one in seen), (part, seen)
        titles = drawn.locator(".role-axis-title text").all_text_contents()
        assert len(titles) == 2 and all(titles)
        name_of = drawn.get_attribute("aria-label")
        assert name_of is not None and all(title in name_of for title in titles)
        assert drawn.bounding_box()["width"] > 250


def test_the_scheme_changes_the_colours(browser: Any, pages: Path) -> None:
    seen = set()
    for scheme in SCHEMES:
        page = Opened(browser, pages / "rig.html", 390, scheme).page
        seen.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        seen.add(page.locator(".mark-symbol path").first.evaluate("e => getComputedStyle(e).fill"))
    assert len(seen) == 4


def test_the_keyboard_reaches_what_opens_and_what_scrolls(browser: Any, pages: Path) -> None:
    page = Opened(browser, pages / "rig.html", 390, "light").page
    wanted = page.locator("a[href], summary, .scroll:visible").count()
    for _ in range(wanted):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.localName") == "summary":
            page.keyboard.press("Enter")
            assert page.evaluate("document.activeElement.parentElement.open")
            return
    raise AssertionError("no summary was reached")


def test_it_prints_in_light_without_what_is_folded(browser: Any, pages: Path) -> None:
    page = Opened(browser, pages / "rig.html", 1280, "dark").page
    page.emulate_media(media="print")
    ink, back = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert (ink, back) == ("rgb(28, 33, 40)", "rgb(255, 255, 255)")
    assert page.locator("details:visible").count() == 0
    assert page.locator("figure:visible").count() == 6
