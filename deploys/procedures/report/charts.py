"""Charts as Vega-Lite specifications, and their vector pictures (docs/adr/0030). The colours are
the page's own CSS variables, so that a picture is in the page's colour scheme.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

from markupsafe import Markup
from pyinfra.api.exceptions import DeployError

Json = dict[str, Any]
INSTALL = "pip install --require-hashes -r requirements/report.txt"
# As many colours as the page's stylesheet names, and signs by which series differ besides: a mark,
# as Vega and as a text names it, and a dash.
COLOURS = 4
SIGNS = (
    ("circle", "●", (1, 0)), ("square", "■", (7, 4)), ("triangle-up", "▲", (2, 3)),
    ("diamond", "◆", (10, 3, 2, 3)), ("cross", "✚", (4, 4)),
)  # fmt: skip
WIDTH, HEIGHT, FONT = 380, 230, 14
SVG = "http://www.w3.org/2000/svg"
INK, SOFT = "var(--ink)", "var(--line)"
# How a chart reads its x: names in their order, numbers, moments.
Axis = Literal["ordinal", "quantitative", "temporal"]


@dataclass(frozen=True)
class Mark:
    """A value of a series, with the ends of its interval where it has one."""

    series: str
    x: str | float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Key:
    """How a series is drawn: the number of its colour, its mark and its dash."""

    name: str
    colour: int
    shape: str
    sign: str
    dash: tuple[int, ...]


@dataclass(frozen=True)
class Chart:
    """A chart: what it shows, with its units in the titles of its axes.

    `marks` False: a line alone, for values every few seconds. `note` says what the intervals are.
    """

    title: str
    x: str
    y: str
    rows: tuple[Mark, ...]
    axis: Axis = "ordinal"
    marks: bool = True
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The series in the order in which they come."""
        return tuple(dict.fromkeys(row.series for row in self.rows))

    @property
    def keys(self) -> list[Key]:
        """What the legend shows of each series."""
        return [
            Key(name, at % COLOURS + 1, *SIGNS[at % len(SIGNS)])
            for at, name in enumerate(self.names)
        ]

    @property
    def figures(self) -> list[tuple[str, ...]]:
        """The values in words: series, x, value, interval. Of a line without marks some of each."""
        if not self.marks:
            return list(_some(self.rows))
        return [(m.series, str(m.x), f"{m.y:.4g}", _between(m)) for m in self.rows]


def _between(mark: Mark) -> str:
    if mark.low is None or mark.high is None:
        return ""
    return f"{mark.low:.4g} to {mark.high:.4g}"


def _some(rows: Iterable[Mark]) -> Iterable[tuple[str, ...]]:
    """First, lowest, highest and last of each series."""
    by_series: dict[str, list[Mark]] = {}
    for row in rows:
        by_series.setdefault(row.series, []).append(row)
    for name, of in by_series.items():
        picked = (of[0], min(of, key=_y), max(of, key=_y), of[-1])
        for word, row in zip(("first", "lowest", "highest", "last"), picked, strict=True):
            yield name, f"{float(row.x):.1f}", f"{row.y:.4g}", word


def _y(mark: Mark) -> float:
    return mark.y


def spec(chart: Chart) -> Json:
    """The chart as Vega-Lite. Series differ by colour, by mark and by dash."""
    x: Json = {"field": "x", "type": chart.axis, "title": chart.x, "sort": None}
    if chart.axis == "ordinal":
        x["axis"] = {"labelAngle": 0}
    if chart.axis == "temporal":
        x |= {"scale": {"type": "utc"}, "axis": {"tickCount": 4, "format": "%d %b", "grid": False}}
    y: Json = {"field": "y", "type": "quantitative", "title": chart.y, "scale": {"zero": True}}
    keys = chart.keys
    # the page has the legend, in text of its own size
    scale: Json = {"domain": list(chart.names)}
    series: Json = {"field": "series", "type": "nominal", "legend": None, "sort": None}
    colour = {**series, "scale": {**scale, "range": [f"var(--s{key.colour})" for key in keys]}}
    dash = {**series, "scale": {**scale, "range": [list(key.dash) for key in keys]}}
    shape = {**series, "scale": {**scale, "range": [key.shape for key in keys]}}
    layers: list[Json] = [
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"y": y, "strokeDash": dash}}
    ]
    if any(row.low is not None for row in chart.rows):
        ends = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
        layers.append({"mark": {"type": "rule", "strokeWidth": 1.5}, "encoding": ends})
    if chart.marks:
        point = {"type": "point", "filled": True, "size": 80, "opacity": 1}
        layers.append({"mark": point, "encoding": {"y": y, "shape": shape}})
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": WIDTH,
        "height": HEIGHT,
        "data": {"values": [_row(row) for row in chart.rows]},
        "encoding": {"x": x, "color": colour},
        "layer": layers,
        "config": CONFIG,
    }


def _row(mark: Mark) -> Json:
    return {key: value for key, value in vars(mark).items() if value is not None}


_TEXT = {"labelColor": INK, "titleColor": INK, "labelFontSize": FONT, "titleFontSize": FONT}
CONFIG: Json = {
    "background": None,
    "font": "sans-serif",
    "axis": {**_TEXT, "gridColor": SOFT, "domainColor": INK, "tickColor": INK,
             "titleFontWeight": "normal"},
    "view": {"stroke": None},
}  # fmt: skip


def library() -> Any:
    """The library that draws; DeployError where it is not installed."""
    try:
        import vl_convert
    except ImportError:
        raise DeployError(
            f"the charts need vl-convert-python, which is not installed; install it with: {INSTALL}"
        ) from None
    return vl_convert


def draw(charts: Iterable[Chart]) -> Mapping[str, Markup]:
    """Each chart's picture by its title; DeployError where the library is not installed.

    Without a chart the library is not asked for.
    """
    return {c.title: picture(spec(c), f"{c.title}: {c.y} by {c.x}") for c in charts}


def picture(drawn: Json, name: str) -> Markup:
    """A specification's picture as an element of the page, scaled by its width, with one name for
    all of it. DeployError where the library is not installed.
    """
    root = ElementTree.fromstring(library().vegalite_to_svg(drawn))
    for part in root.iter():
        for key in [key for key in part.attrib if key == "role" or key.startswith("aria-")]:
            del part.attrib[key]
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.attrib |= {"role": "img", "aria-label": name}
    ElementTree.register_namespace("", SVG)
    return Markup(ElementTree.tostring(root, encoding="unicode"))
