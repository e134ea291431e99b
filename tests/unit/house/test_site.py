"""What the site is made from: pages of codes, bars of benchmarks, the recorded run. Not Sphinx:
tests/system/page builds it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.site import bench, demo, gates
from docs.site.stage import ReadMe, link_codes, recipes
from gates.core.codes import CODES
from tests.unit.house.test_docs import ROOT

GATES = (ROOT / "docs" / "gates.md").read_text()
RUN = """setup: not of the demo
== serve: converge and prove
{lines}

== how long it took
   12.0 s  serve: converge and prove
"""


def test_every_code_has_its_page_with_what_the_code_says() -> None:
    intro, found = gates.sections(GATES)
    whole = gates.index(intro, found)
    for name, code in CODES.items():
        page = gates.page(name, found[name])
        assert f"# {name}\n" in page and f"](gates/{name}.md)" in whole
        assert ("· blocks ·" if code.severity == "block" else "· warns ·") in page
        assert page.count("not waivable") == int(not code.waivable), name
        for part in ("Symptom", "Why", "Mend", "Likely cause"):
            assert re.search(rf"^\*\*{part}:\*\* \S", page, re.M), (name, part)
        # every link leads out of the folder, or to another code
        for target in re.findall(r"\]\(([^)]+)\)", page):
            assert target.startswith("../") or target.removesuffix(".md") in CODES, target


def test_a_code_without_a_section_ends_the_build() -> None:
    with pytest.raises(ValueError, match="differ in: wol-card"):
        gates.sections(GATES.replace("## wol-card\n", ""))


def test_a_link_to_a_code_goes_to_its_page_and_a_wrong_one_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](../gates.md#wol-card) [b](gates.md#no-such) [c](gates.md)")
    link_codes(page)
    assert page.read_text() == "[a](../gates/wol-card.md) [b](gates.md#no-such) [c](gates.md)"


def test_bars_are_the_rows_in_seconds() -> None:
    table = (
        "| what | median (min to max) | target | |\n|---|---|---|---|\n"
        "| serve | 2.05 s (1.65 to 2.09) | ≤ 3 s | met |\n"
        "| commands | 1 | ≤ 3 | met |\n| faster | 8.0 times faster | ≥ 8 | met |\n"
        "| own part | 8.6 s | | |\n| stream | 3904 MB/s | | |\n"
    )
    serve, own = bench.bars(table)
    assert serve == bench.Bar("serve", 2.05, 1.65, 2.09, 3.0)
    assert own == bench.Bar("own part", 8.6, None, None, None)
    plain = [*bench.bars("| what | seconds, wall |\n|---|---|\n| upgrade | 255 |\n")]
    assert plain == [bench.Bar("upgrade", 255.0, None, None, None)]
    values = bench.spec([serve, own])["data"]["values"]
    assert [row["top"] for row in values] == [3.0, 8.6]


def test_each_part_of_the_benchmarks_that_tells_seconds_has_bars() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    parts = re.findall(r"^## .+\n(?:(?!## ).*\n)*", text, re.M)
    tables = [table for part in parts for table in re.findall(r"(?:^\|.*\n)+", part, re.M)]
    # weights are told in MB/s
    drawn = [len([*bench.bars(table)]) for table in tables if "MB/s (" not in table]
    assert len(tables) >= len(parts) > 5 and len(drawn) >= 5 and min(drawn) > 1


def test_a_recorded_run_is_drawn_without_its_long_middle_and_asks_for_nothing() -> None:
    lines = "\n".join(f"    [lab1] line {number}" for number in range(40))
    drawn = demo.draw(RUN.format(lines=lines)).replace("&#160;", " ")
    assert "$ make demo" in drawn and "== serve: converge and prove" in drawn
    assert "line 2<" in drawn and "line 20<" not in drawn and "line 39<" in drawn
    assert "… 25 lines …" in drawn and "not of the demo" not in drawn
    assert "@font-face" not in drawn and "url(h" not in drawn


def test_a_run_that_failed_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="not the output of a `make demo` that passed"):
        demo.draw("== serve: converge and prove\ndemo: failed: pyinfra\n")


def test_the_site_shows_what_readme_and_contributing_have() -> None:
    readme = ReadMe((ROOT / "README.md").read_text())
    assert "](docs/demo.svg)" in readme.first_page(True)
    assert "demo.svg" not in readme.first_page(False)
    assert "deploys/serve.py -y" in readme.start()
    pages = {path.name for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    table, _, tree = readme.runbooks().partition("```{toctree}")
    assert set(re.findall(r"\]\(([^)]+)\)", table)) == pages
    assert set(re.findall(r"<([^>]+)>", tree)) == pages
    shown = recipes((ROOT / "CONTRIBUTING.md").read_text())
    for path in (ROOT / "catalog" / "recipes").glob("*.yaml"):
        assert f"## {path.stem}\n" in shown
    with pytest.raises(ValueError, match="no section 'Gone'"):
        readme.part("Gone")


def test_every_page_is_in_the_contents() -> None:
    """A page of docs/ that no list of the site names would be left to the search."""
    listed = set(re.findall(r"(?:<|^)([\w./-]+\.md)>?$",
                            (ROOT / "docs/site/contents.txt").read_text(), re.M))  # fmt: skip
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    apart = {page for page in pages if re.match("docs/(adr|runbooks)/", page)}
    made = {"start.md", "docs/runbooks/index.md", "docs/recipes.md", "docs/decisions.md"}
    assert pages - apart == listed - made - {"CONTRIBUTING.md", "CHANGELOG.md", "RELEASE.md"}
