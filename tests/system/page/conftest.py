"""Debian's chromium, which may ask for nothing but the page's own file or the site's folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route, sync_playwright

from deploys.plans.report import rig_page, runs_page
from docs.site.__main__ import build
from tests.unit.builders.pages import HOSTILE, finding, look, runs

FOUND = (
    finding("fabric-mtu", "spark1", f"MTU below 9000 on bond0 {HOSTILE}"),
    finding("nic-errors", "spark1", "errors grew"),
    finding("host-differs", "spark2", "a sysctl is no longer in force"),
    finding("memory-unreadable", "spark2", "could not be read", unknown=True),
)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both pages, drawn from the tests' own measurements; kept where
    RIGBOOK_PAGES names a folder.
    """
    named = os.environ.get("RIGBOOK_PAGES")
    folder = Path(named) if named else tmp_path_factory.mktemp("pages")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rig.html").write_text(rig_page(look(runs(), FOUND)))
    (folder / "runs.html").write_text(runs_page(HOSTILE, "2026-11-23", runs(), [HOSTILE]))
    (folder / "empty.html").write_text(rig_page(look((), ())))
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built strictly; kept where RIGBOOK_PAGES names a folder."""
    named = os.environ.get("RIGBOOK_PAGES")
    folder = (Path(named).resolve() if named else tmp_path_factory.mktemp("pages")) / "site"
    folder.parent.mkdir(parents=True, exist_ok=True)
    assert build(folder) == 0
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One chromium for all tests; root's has no sandbox."""
    with sync_playwright() as driver:
        args = ["--no-sandbox"] if os.geteuid() == 0 else []
        made = driver.chromium.launch(executable_path=shutil.which("chromium"), args=args)
        yield made
        made.close()


class Opened:
    """A page as a reader has it, with what the browser complained of and what was asked for."""

    def __init__(
        self, browser: Any, path: Path, width: int, scheme: str, folder: Path | None = None
    ) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        own = path.as_uri()
        inside = f"{folder.as_uri()}/" if folder else own
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
        context.route("**/*", lambda route: self._may(route, inside))
        self.page = context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.goto(own)

    def _may(self, route: Route, own: str) -> None:
        url = route.request.url
        if url == own or (own.endswith("/") and url.startswith(own)):
            route.continue_()
        else:
            self.asked.append(url)
            route.abort()
