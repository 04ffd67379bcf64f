"""The one kind of table that code all over the project enters things in: passes, rules, lowerings, formats."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from meshbridge.ir.mlir import MeshError

KeyT = TypeVar("KeyT", bound=Hashable)
EntryT = TypeVar("EntryT")


def docstring(entry: Any) -> str:
    """What a function, a class or a module says of itself."""
    return entry.__doc__ or ""


class Registry(dict[KeyT, EntryT]):
    """Entries by key, in the order in which they were added.

    `kind` is what diagnostics call an entry. `summary` says in words what an entry is; it is the docstring by default.
    """

    def __init__(self, kind: str, summary: Callable[[EntryT], str] = docstring) -> None:
        super().__init__()
        self.kind = kind
        self._summary = summary

    def add(self, key: KeyT, entry: EntryT) -> None:
        """Enters `entry`. Raises MeshError for a key that has another entry, and for an entry without a summary."""
        if not self._summary(entry).strip():
            raise MeshError(f"error: {self.kind} '{key}' has no docstring or summary")
        if self.setdefault(key, entry) is not entry:
            raise MeshError(f"error: {self.kind} '{key}' is registered already")

    def register(self, *keys: KeyT) -> Callable[[EntryT], EntryT]:
        """A decorator that adds what it decorates under each of `keys`."""

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
        """Whatever is added or removed within it is undone at its end."""
        before = dict(self)
        try:
            yield
        finally:
            self.clear()
            self.update(before)
