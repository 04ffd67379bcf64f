"""A spelling of the dialect: its name, the names of operations and attributes, and their formats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from meshbridge.dialect.assembly.formats import FORMATS, OpFormat


@dataclass(frozen=True)
class Spelling:
    """One spelling. `table`: by operation name without prefix, its possible forms, the canonical one first.

    `operations` and `keys` translate operation names and attribute names that differ from ours.
    """

    prefix: str
    table: Mapping[str, tuple[OpFormat, ...]]
    operations: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def formats(self) -> dict[str, tuple[OpFormat, ...]]:
        """The forms by full operation name."""
        return {f"{self.prefix}.{name}": forms for name, forms in self.table.items()}

    @cached_property
    def names(self) -> dict[str, str]:
        """From this spelling's full operation names to ours."""
        return {f"{self.prefix}.{name}": f"mesh.{self.operations.get(name, name)}" for name in self.table}

    @cached_property
    def spelled(self) -> dict[str, str]:
        """From our operation names to this spelling's."""
        return {ours: theirs for theirs, ours in self.names.items()}

    @cached_property
    def hints(self) -> dict[str, str]:
        """By our operation name, the printed name of the results."""
        return {
            self.names[name]: hint
            for name, forms in self.formats.items()
            if (hint := next(iter(forms[0].hints), None)) is not None
        }

    def finish(self, text: str) -> str:
        """Printed text with the dialect's types in this spelling."""
        return _TYPE.sub(lambda match: f"!{self.prefix}." if match.group(1) else match.group(), text) if self.renames else text

    def canonical(self, text: str) -> str:
        """Text of one operation with the dialect's types and attributes in our spelling."""
        return text.replace(f"!{self.prefix}.", "!mesh.").replace(f"#{self.prefix}", "#mesh") if self.renames else text

    @property
    def renames(self) -> bool:
        """True if the dialect has another name than `mesh`."""
        return self.prefix != "mesh"

    @cached_property
    def mention(self) -> re.Pattern[str]:
        """A pattern for the dialect's name, as a prefix of an operation or an attribute."""
        return re.compile(rf"{self.prefix}[.<]")


_TYPE = re.compile(r'"(?:[^"\\\n]|\\.)*"|(!mesh\.)')

CANONICAL = Spelling("mesh", FORMATS)
"""LLVM 20's spelling; its reader also accepts LLVM 21's variants."""
