"""What differs between the spellings of the dialect: its name, its operations' and attributes' names, and its formats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from meshbridge.dialect.assembly.formats import FORMATS, Format


@dataclass(frozen=True)
class Spelling:
    """One spelling. `table`: by operation name without prefix, the forms that it may take, the canonical one first.

    `operations` and `keys` translate its operation names and attribute names to ours, where they differ.
    """

    prefix: str
    table: Mapping[str, tuple[Format, ...]]
    operations: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def formats(self) -> dict[str, tuple[Format, ...]]:
        """By full operation name."""
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
        """By our operation names, the name that results get in print."""
        return {
            self.names[name]: hint
            for name, forms in self.formats.items()
            if (hint := next(iter(forms[0].hints), None)) is not None
        }

    def finish(self, text: str) -> str:
        """Printed text with the dialect's types spelled this spelling's way."""
        return _TYPE.sub(lambda found: f"!{self.prefix}." if found.group(1) else found.group(), text) if self.renames else text

    def canonical(self, text: str) -> str:
        """Text of one operation with the dialect's types and attributes spelled our way."""
        return text.replace(f"!{self.prefix}.", "!mesh.").replace(f"#{self.prefix}", "#mesh") if self.renames else text

    @property
    def renames(self) -> bool:
        """Whether the dialect has another name."""
        return self.prefix != "mesh"

    @cached_property
    def mention(self) -> re.Pattern[str]:
        """Where the dialect's name stands, as an operation's prefix or an attribute's."""
        return re.compile(rf"{self.prefix}[.<]")


_TYPE = re.compile(r'"(?:[^"\\\n]|\\.)*"|(!mesh\.)')

CANONICAL = Spelling("mesh", FORMATS)
"""LLVM 20's; its reader takes LLVM 21's variants as well."""
