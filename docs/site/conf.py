"""Sphinx's settings. Read by `python -m docs.site`, with the sources that it has staged."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

from docs.site.gates import FOLDER
from gates.core import CODES

project = "rigbook"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "rigbook"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
root_doc = "index"
# a link to a heading is checked as a link to a page is
myst_heading_anchors = 4
# a code block without a language is a terminal
highlight_language = "none"


class CodesAreLinks(SphinxTransform):
    """A gate's code between backticks is a link to its page."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        """Wraps each such literal that stands in no link and no heading."""
        for literal in [*self.document.findall(nodes.literal)]:
            name = literal.astext()
            inside = (nodes.reference, addnodes.pending_xref, nodes.title)
            parent = literal.parent
            while parent is not None and not isinstance(parent, inside):
                parent = parent.parent
            target = f"{FOLDER}/{name}"
            if name not in CODES or parent is not None or self.env.docname == target:
                continue
            link = addnodes.pending_xref(
                "", refdomain="std", reftype="doc", reftarget=f"/{target}", refexplicit=True,
                refdoc=self.env.docname, refwarn=True,
            )  # fmt: skip
            literal.replace_self(link)
            link += literal


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    app.add_transform(CodesAreLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
