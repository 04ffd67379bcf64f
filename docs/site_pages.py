"""A hook of mkdocs: the pages that stand in the root of the repository are pages of the site, and links find them there.

It also gives the site the colours of code, and tables whose cells wrap.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).parents[1]

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages of the root, and what they are called in the site, whose root is `docs/`."""


WRAPPED_TABLES = ".rst-content .section table td, .rst-content .section table th { white-space: normal; }"
"""The theme keeps every cell of a table on one line, however long."""


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the pages of the root, and the style sheet."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, page, content=_renamed(text)))
    colours = HtmlFormatter(style="default").get_style_defs(".highlight")
    files.append(File.generated(config, "pygments.css", content=f"{colours}\n{WRAPPED_TABLES}\n"))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Has links of other pages, `../README.md`, find them."""
    return _renamed(markdown)


def _renamed(text: str) -> str:
    for name, page in PAGES.items():
        text = re.sub(rf"(\]\((?:\.\./)*?)(?:\.\./)?{re.escape(name)}", rf"\1{page}", text)
    return text
