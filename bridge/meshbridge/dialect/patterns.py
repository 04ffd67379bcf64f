"""Patterns of paths in the trees of arguments and results: `params/**/kernel`, `params['layers'][*]['up']`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache

_KEY = re.compile(r"""\['((?:[^'\\]|\\.)*)'\]|\[([^\]]*)\]|\.(\w+)""")
_ROOT = re.compile(r"[^\[.]*")


def keys_of(path: str) -> tuple[str, ...]:
    """The keys of a path in JAX's spelling: `params`, `layers`, `0` of `params['layers'][0]`. A slash within a key divides it."""
    root = _ROOT.match(path)
    assert root is not None
    keys = (root[0], *("".join(groups).strip('"') for groups in _KEY.findall(path[root.end() :])))
    return tuple(part for key in keys for part in key.split("/") if part)


def matches(pattern: str, path: str) -> bool:
    """True if the pattern matches the path. A pattern is a path, or keys with slashes between them; `*` matches any part of a
    key, and the key `**` any number of keys. The array of a variable, `['kernel'].value`, also has the path of the variable."""
    spellings = {path, path.removesuffix(_VALUE)}
    return pattern in spellings or any(_matches_keys(pattern, spelling) for spelling in spellings)


def no_match(pattern: str, names: Sequence[str]) -> str:
    """The error for a pattern that matches none of the names of arguments and results, with one that does and is close to it."""
    existing = f"there are {_listed(names)}" if names else "there are none"
    return f"error: no argument and no result matches '{pattern}': {existing}\n  hint: {_closest(pattern, names)}"


def _closest(pattern: str, names: Sequence[str]) -> str:
    known = {key for name in names for key in keys_of(name)}
    keys = [_closest_key(key, known) for key in (pattern.split("/") if "/" in pattern else keys_of(pattern))]
    for candidate in ("/".join(keys), "/".join(("**", *keys, "**"))):
        matching = [name for name in names if matches(candidate, name)]
        if len(matching) == 1:
            return f"did you mean {matching[0]}?"
        if matching:
            return f"did you mean '{candidate}', which matches {_listed(matching, 2)}?"
    if near := get_close_matches(pattern, names, 4, 0.5):
        return f"did you mean {_listed(near)}?"
    return "keys have slashes between them, as in params/**/kernel; * stands for any"


def _closest_key(key: str, known: set[str]) -> str:
    return key if "*" in key or key in known else next(iter(get_close_matches(key, sorted(known), 1)), key)


def _listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


_VALUE = ".value"
"""The end of the path of each variable of flax.nnx."""


def _matches_keys(pattern: str, path: str) -> bool:
    return _regex(pattern).fullmatch("".join(f"{key}/" for key in keys_of(path))) is not None


@lru_cache(maxsize=256)
def _regex(pattern: str) -> re.Pattern[str]:
    keys = pattern.split("/") if "/" in pattern else keys_of(pattern)
    return re.compile("".join(r"(?:[^/]+/)*" if key == "**" else re.escape(key).replace(r"\*", "[^/]*") + "/" for key in keys))
