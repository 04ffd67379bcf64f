"""Patterns of paths in the trees of arguments and results: `params/**/kernel`, `params['layers'][*]['up']`."""

from __future__ import annotations

import re
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


_VALUE = ".value"
"""The end of the path of each variable of flax.nnx."""


def _matches_keys(pattern: str, path: str) -> bool:
    return _regex(pattern).fullmatch("".join(f"{key}/" for key in keys_of(path))) is not None


@lru_cache(maxsize=256)
def _regex(pattern: str) -> re.Pattern[str]:
    keys = pattern.split("/") if "/" in pattern else keys_of(pattern)
    return re.compile("".join(r"(?:[^/]+/)*" if key == "**" else re.escape(key).replace(r"\*", "[^/]*") + "/" for key in keys))
