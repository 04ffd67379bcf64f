"""The table type in which code all over the project registers passes, rules, lowerings and formats."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from meshbridge.ir.mlir import MeshError

KeyT = TypeVar("KeyT", bound=Hashable)
EntryT = TypeVar("EntryT")


def docstring(entry: Any) -> str:
    """The docstring of a function, a class or a module."""
    return entry.__doc__ or ""


class Registry(dict[KeyT, EntryT]):
    """Entries by key, in the order in which they were added.

    `kind` is the name of an entry in diagnostics. `summary` describes an entry; it is the docstring by default.
    """

    def __init__(self, kind: str, summary: Callable[[EntryT], str] = docstring) -> None:
        super().__init__()
        self.kind = kind
        self._summary = summary

    def add(self, key: KeyT, entry: EntryT) -> None:
        """Adds `entry`. Raises MeshError for a key with another entry, and for an entry without a summary."""
        if not self._summary(entry).strip():
            raise MeshError(f"error: {self.kind} '{key}' has no docstring or summary")
        if self.setdefault(key, entry) is not entry:
            raise MeshError(f"error: {self.kind} '{key}' is registered already")

    def register(self, *keys: KeyT) -> Callable[[EntryT], EntryT]:
        """A decorator that adds its function or class under each of `keys`."""

        def enter(entry: EntryT) -> EntryT:
            for key in keys:
                self.add(key, entry)
            return entry

        return enter

    def summaries(self) -> dict[KeyT, str]:
        """Each key with its entry's summary on one line, sorted by key."""
        return {key: " ".join(self._summary(self[key]).split()) for key in sorted(self, key=str)}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restores the entries at the end."""
        before = dict(self)
        try:
            yield
        finally:
            self.clear()
            self.update(before)
