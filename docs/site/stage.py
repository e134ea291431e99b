"""The sources of the site: the project's pages where they lie, and the pages made from the code.

They lie as in the project, so that a link that works on GitHub works in the site too.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from docs.site import bench, gates, picture
from gates.core import CODES

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("CONTRIBUTING.md", "CHANGELOG.md", "RELEASE.md", "docs")
DEMO = "docs/demo.svg"
HERE = ROOT / "docs" / "site"
# Where docs/architecture.md has its picture on the site.
TABLE = "\n| layer | answers |"
SHOWN = (
    "\n![Layers as boxes, their packages as rows, imports as arrows](architecture.svg)\n\n"
    "An arrow is an import; arrows that follow from others are left out.\n"
)
_CODE_LINK = re.compile(r"\]\((\.\./|)gates\.md#([\w-]+)\)")


def stage(source: Path) -> None:
    """Writes the sources anew into a folder. ValueError where a page is not as it must be."""
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            skipped = shutil.ignore_patterns("site", "__init__.py", "__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=skipped)
        else:
            shutil.copy(ROOT / name, source / name)
    readme = ReadMe((ROOT / "README.md").read_text())
    for name, text in {
        "index.md": readme.first_page((ROOT / DEMO).exists()),
        "start.md": readme.start(),
        "docs/runbooks/index.md": readme.runbooks(),
        "docs/recipes.md": recipes((ROOT / "CONTRIBUTING.md").read_text()),
        "docs/decisions.md": "# Decisions\n\n```{toctree}\n:glob:\n\nadr/*\n```\n",
    }.items():
        (source / name).write_text(text)
    _gates(source)
    if shutil.which("dot"):
        page = source / "docs" / "architecture.md"
        picture.draw(page.with_suffix(".svg"))
        page.write_text(page.read_text().replace(TABLE, f"{SHOWN}{TABLE}", 1))
    page = source / "docs" / "benchmarks.md"
    page.write_text(bench.with_pictures(page.read_text()))
    for page in source.rglob("*.md"):
        link_codes(page)


def _gates(source: Path) -> None:
    """One page a code in place of one section a code."""
    intro, found = gates.sections((source / "docs" / "gates.md").read_text())
    (source / "docs" / "gates.md").write_text(gates.index(intro, found))
    folder = source / gates.FOLDER
    folder.mkdir()
    for name, text in found.items():
        (folder / f"{name}.md").write_text(gates.page(name, text))


def link_codes(page: Path) -> None:
    """`gates.md#CODE` becomes the page of that code; another anchor stays, and fails the build."""

    def to_page(found: re.Match[str]) -> str:
        up, name = found.groups()
        known = name in CODES
        return f"]({up}gates/{name}.md)" if known else found[0]

    page.write_text(_CODE_LINK.sub(to_page, page.read_text()))


class ReadMe:
    """README.md, cut into what the site shows on several pages."""

    def __init__(self, text: str) -> None:
        self.intro, *rest = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
        self.parts = dict(zip(rest[::2], rest[1::2], strict=True))
        self.table = "".join(re.findall(r"^\|.*\n", self.intro, re.MULTILINE))

    def part(self, name: str) -> str:
        """A section with its heading; ValueError where README.md has no such."""
        if name not in self.parts:
            raise ValueError(f"README.md has no section {name!r}, which the site shows")
        return f"## {name}\n{self.parts[name]}"

    def first_page(self, demo: bool) -> str:
        """What it is, a recorded run, what it never does, and the way to the other pages."""
        before, after = self.intro.split(self.table)
        shown = f"## A recorded run\n\n![make demo, recorded]({DEMO})\n\n" if demo else ""
        return (
            before
            + "[Start here](start.md): the first rig, step by step. "
            + "[Runbooks](docs/runbooks/index.md): what you want to do, and the page for it.\n\n"
            + after.lstrip()
            + shown
            + self.part("What it never does")
            + (HERE / "contents.txt").read_text()
        )

    def start(self) -> str:
        """From a clone to the first rig that serves."""
        names = ("Install", "A first real rig", "Two commands to see it")
        return "# Start here\n\n" + "".join(self.part(name) for name in names)

    def runbooks(self) -> str:
        """README's table of what one wants to do, beside the pages themselves."""
        table = self.table.replace("](docs/runbooks/", "](")
        names = sorted(path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md"))
        tree = "\n".join(f"{name} <{name}.md>" for name in names)
        return (
            "# Runbooks\n\nEach page has the same parts: what it is for, what must be so before,\n"
            "the commands, what they print, what it does, how it fails, and the way back.\n\n"
            f"{table}\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
        )


def recipes(contributing: str) -> str:
    """How a recipe is added, and those that are there."""
    found = re.search(r"^## Add a recipe\n(.*?)^## ", contributing, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError("CONTRIBUTING.md has no section 'Add a recipe', which the site shows")
    told = found[1].replace("](docs/", "](")
    shown = [
        f"## {path.stem}\n\n```yaml\n{path.read_text()}```\n"
        for path in sorted((ROOT / "catalog" / "recipes").glob("*.yaml"))
    ]
    return f"# Recipes\n\n## Add a recipe\n{told}" + "\n".join(shown)
