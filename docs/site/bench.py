"""Pictures of docs/benchmarks.md: the seconds of each of its tables as bars."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from deploys.plans.report import CONFIG, INK, Json, picture

# A row's height: its words, and the bar below them, so that it fits on a phone.
ROW, BAR, WIDTH, FONT = 44, 14, 520, 15
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(?: s)?(?: \((\d+(?:\.\d+)?) to (\d+(?:\.\d+)?)\))?")


@dataclass(frozen=True)
class Bar:
    """A row of a table: seconds, the lowest and highest round, and the target where it has one."""

    what: str
    seconds: float
    low: float | None
    high: float | None
    target: float | None


def bars(table: str) -> Iterator[Bar]:
    """The rows of a table of Markdown that are in seconds, in its order."""
    head, _, *rows = (
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines()
    )
    for row in rows:
        found = _SECONDS.fullmatch(row[1])
        if found is None or not ("seconds" in head[1] or " s" in row[1]):
            continue
        aim = re.fullmatch(r"≤ ([\d.]+) s", row[2]) if len(row) > 2 else None
        low, high = (float(found[n]) if found[n] else None for n in (2, 3))
        yield Bar(row[0], float(found[1]), low, high, float(aim[1]) if aim else None)


def spec(rows: list[Bar]) -> Json:
    """The bars as Vega-Lite, each with its figure, the range of its rounds and its target."""
    y: Json = {"field": "what", "type": "nominal", "sort": None, "axis": None}
    number = {"type": "quantitative", "title": "seconds", "axis": {"tickCount": 5}}
    ends = {"x": {**number, "field": "low"}, "x2": {"field": "high"}}
    words = {"type": "text", "align": "left", "color": INK, "fontSize": FONT}
    up, down = -ROW // 4, ROW // 4
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": WIDTH,
        "height": {"step": ROW},
        "data": {"values": [_row(row) for row in rows]},
        "encoding": {"y": y},
        "layer": [
            {"mark": {"type": "bar", "color": "var(--s1)", "height": BAR, "yOffset": down},
             "encoding": {"x": {**number, "field": "seconds"}}},
            {"mark": {"type": "rule", "color": INK, "strokeWidth": 2, "yOffset": down},
             "encoding": ends},
            {"mark": {"type": "tick", "color": "var(--s2)", "thickness": 3, "size": BAR + 8,
                      "yOffset": down},
             "encoding": {"x": {**number, "field": "target"}}},
            {"mark": {**words, "dx": 6, "yOffset": down},
             "encoding": {"text": {"field": "seconds"}, "x": {**number, "field": "top"}}},
            {"mark": {**words, "yOffset": up},
             "encoding": {"text": {"field": "what"}, "x": {"value": 0}}},
        ],
        "config": CONFIG,
    }  # fmt: skip


def _row(bar: Bar) -> Json:
    row = {key: value for key, value in vars(bar).items() if value is not None}
    ends = (bar.seconds, bar.high, bar.target)
    return row | {"top": max(end for end in ends if end is not None)}


def with_pictures(text: str) -> str:
    """The page, with a picture above each table that holds two rows in seconds or more."""
    made, last = [], 0
    for found in _TABLE.finditer(text):
        rows = [*bars(found[0])]
        made.append(text[last : found.start()])
        if len(rows) > 1:
            made.append(f'<figure class="bars">\n{_drawn(rows)}\n{_caption(rows)}</figure>\n\n')
        made.append(found[0])
        last = found.end()
    return "".join(made) + text[last:]


def _drawn(rows: list[Bar]) -> str:
    return str(picture(spec(rows), "Bars: seconds of the table below")).replace("\n", " ")


def _caption(rows: list[Bar]) -> str:
    told = ["Seconds; less is better."]
    if any(row.low is not None for row in rows):
        told.append("The line goes from the lowest to the highest round.")
    if any(row.target is not None for row in rows):
        told.append("The short upright mark is the target.")
    return f"<figcaption>{' '.join(told)}</figcaption>\n"
