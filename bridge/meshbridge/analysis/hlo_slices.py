"""Whether an all-reduce's result is only sliced, which makes it a reduce-scatter in two instructions."""

from __future__ import annotations

import re

from meshbridge.analysis.hlo import Computation, HloModule, Instruction


def sliced_results(module: HloModule, computation: Computation, op: Instruction, group: int) -> list[bool]:
    """For each operand of an all-reduce, whether every reader of its result takes at most one device's share."""
    most = [computation.instructions[name].bytes / group for name in op.operands]
    names = _results(computation, op, len(most))
    return [name is not None and _only_sliced(module, computation, name, share) for name, share in zip(names, most, strict=True)]


def _results(computation: Computation, op: Instruction, count: int) -> list[str | None]:
    """The name of each result: the instruction itself, or its only get-tuple-element; None if there is none."""
    users = computation.users[op.name]
    if len(users) == 1 and users[0].opcode == f"{op.opcode.removesuffix('-start')}-done":
        return _results(computation, users[0], count)
    if count == 1:
        return [op.name]
    names: list[str | None] = [None] * count
    for user in users:
        if user.opcode == "get-tuple-element" and (index := re.search(r"index=(\d+)", user.attributes)):
            names[int(index.group(1))] = user.name
    return names


_VIEWS = frozenset({"bitcast", "copy", "reshape", "transpose", "convert"})
"""Instructions that keep all elements of a value: slicing their result slices their operand."""


def _only_sliced(module: HloModule, computation: Computation, name: str, most: float) -> bool:
    """Whether every reader of a value takes a slice of at most `most` bytes, at a computed position."""
    readers = computation.users[name]
    return bool(readers) and all(_slices(module, computation, reader, name, most) for reader in readers)


def _slices(module: HloModule, computation: Computation, reader: Instruction, name: str, most: float) -> bool:
    if reader.opcode == "dynamic-slice":
        return reader.operands[0] == name and reader.bytes <= most
    if reader.opcode in _VIEWS:
        return _only_sliced(module, computation, reader.name, most)
    if reader.opcode in ("fusion", "call"):
        (body,) = module.called(reader)
        inside = [parameter.name for parameter, operand in zip(body.parameters, reader.operands, strict=True) if operand == name]
        return all(_only_sliced(module, body, parameter, most) for parameter in inside)
    return False
