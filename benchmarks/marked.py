"""Parts of pages that a command writes: what stands between two marks, which are comments that name the command."""

from __future__ import annotations

from pathlib import Path


def replaced(page: Path, name: str, command: str, content: str) -> str:
    """The text of `page` with `content` between the marks of `name`. Raises ValueError if it has no such marks."""
    return replaced_in(page.read_text(), name, command, content, page.name)


def replaced_in(text: str, name: str, command: str, content: str, page: str) -> str:
    """The same of a page's text. `page` is what an error calls it."""
    begin, end = f"<!-- {name}: begin ({command}) -->", f"<!-- {name}: end -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"expected '{begin}' and '{end}' in {page}")
    return f"{before}{begin}\n{content}\n{end}{after}"
