"""Parts of pages that a command writes: what stands between two marks, which are comments that name the command."""

from __future__ import annotations

from pathlib import Path


def replaced(page: Path, name: str, command: str, content: str) -> str:
    """The text of `page` with `content` between the marks of `name`. Raises ValueError if it has no such marks."""
    begin, end = f"<!-- {name}: begin ({command}) -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"expected '{begin}' and '{end}' in {page.name}")
    return f"{before}{begin}\n{content}\n{end}{after}"
