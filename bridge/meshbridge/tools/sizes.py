"""Sizes as people read them: in units of 1,000. Programs read the exact number in JSON."""

from __future__ import annotations


def size_text(size: float) -> str:
    """`260 B`, `98.3 KB`, `1,234.5 GB`: bytes up to 1,000, then one decimal in KB, MB or GB."""
    if size < 999.5:
        return f"{size:.0f} B"
    for unit in ("KB", "MB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:,.1f} GB"
