"""Passes by name, and pass pipelines as text."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, get_args, get_type_hints

from meshbridge.ir.mlir import MeshError
from meshbridge.ir.passes import PASSES, Pass
from meshbridge.machines.compile_target import DEFAULT_TARGET, PARTS
from meshbridge.text import did_you_mean

PASSES_IN = ("read", "legalize", "decide", "partitioner", "collectives", "overlap", "lowering", "backends", "upstream")
"""The folders with passes."""


def registered_passes() -> dict[str, type[Pass]]:
    """Every pass by name: each file in the folders PASSES_IN registers its own, and so do plugins."""
    _import_passes()
    return dict(sorted(PASSES.items()))


@cache
def _import_passes() -> None:
    for folder in PASSES_IN:
        package = importlib.import_module(f"meshbridge.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def passes_by_any_name() -> dict[str, type[Pass]]:
    """Every pass by its name and by its aliases in LLVM."""
    passes = registered_passes()
    return {alias: step for step in passes.values() for alias in step.aliases} | passes


def load_plugin(path: str) -> None:
    """Executes a Python file that registers passes, once. Raises MeshError, with the line that fails, if it cannot."""
    name = f"mesh_opt_plugin:{Path(path).resolve()}"
    if name in sys.modules:
        return
    _import_passes()  # a plugin must not take the name of one of them
    loader = SourceFileLoader(name, path)
    module = importlib.util.module_from_spec(ModuleSpec(name, loader, origin=path))
    sys.modules[name] = module  # where dataclasses look for the names in their annotations
    try:
        loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        at = ":".join(map(str, (path, *lines[-1:])))
        raise MeshError(f"{at}: error: cannot be executed as a pass plugin: {type(error).__name__}: {error}") from error


_PASS = re.compile(r"\s*([\w-]+)\s*(?:\{([^{}]*)\})?\s*(?:,|$)")
_FUNCTION_PIPELINE = re.compile(r"\s*func\.func\s*\(([^()]*)\)\s*(?:,|$)")


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """`a,b{option=value other=value}`, bare or within `builtin.module(…)`, as mlir-opt writes pipelines.

    `func.func(a,b)` is `a,b`: every pass here runs on the module and finds its functions itself.
    Raises MeshError for an unknown pass or option.
    """
    inner = re.fullmatch(r"\s*builtin\.module\s*\((.*)\)\s*", text, re.S)
    return tuple(make_pass(name, options) for name, options in _entries(inner.group(1) if inner else text))


def _entries(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        if nested := _FUNCTION_PIPELINE.match(text, position):
            yield from _entries(nested.group(1))
            position = nested.end()
            continue
        match = _PASS.match(text, position)
        if match is None:
            raise MeshError(f"error: expected 'pass' or 'pass{{option=value}}' in pass pipeline, found '{text[position:]}'")
        yield match.group(1), match.group(2) or ""
        position = match.end()


def make_pass(name: str, options: str = "") -> Pass:
    """The pass `name` with `options` as `option=value` pairs separated by spaces.

    An option of type CompileTarget is given by its parts: `machine=v5p:4x4x4 layout=data=x compiler-options=best`.

    Raises MeshError for an unknown pass, an unknown option, or an invalid value.
    """
    passes = passes_by_any_name()
    if name not in passes:
        raise MeshError(f"error: unknown pass '{name}', expected one of {', '.join(sorted(passes))}{did_you_mean(name, passes)}")
    step = passes[name]()
    parts: dict[str, str] = {}
    for entry in options.split():
        option, equals, value = entry.partition("=")
        key = option.replace("-", "_")
        key = step.option_aliases.get(key, key)
        if equals and key in PARTS and _has_target(step):
            parts[key] = value
            continue
        if step.main_option and option.replace("-", "_") not in step.__dataclass_fields__:  # type: ignore[attr-defined]
            option, equals, value = step.main_option, "=", entry
        step = _with_option(step, option, value if equals else "true")
    return _with_target(step, parts) if parts else step


def defaults(step: Pass) -> dict[str, object]:
    """The values of a pass's options, by the names that users write."""
    values: dict[str, object] = {}
    for option in fields(step):  # type: ignore[arg-type]
        value = getattr(step, option.name)
        if option.name == _TARGET:
            values |= {part: "" if value is None or (text := value.written(part)) is None else text for part in PARTS}
        else:
            values[option.name] = value
    return values


_TARGET = "target"
"""The option of passes with a CompileTarget."""


def _has_target(step: Pass) -> bool:
    return any(option.name == _TARGET for option in fields(step))  # type: ignore[arg-type]


def _with_target(step: Pass, parts: dict[str, str]) -> Pass:
    """`step` for the target with these parts. Raises MeshError for parts without a machine."""
    instance: Any = step
    if instance.target is None and "machine" not in parts:
        option = next(iter(parts)).replace("_", "-")
        raise MeshError(f"error: option '{option}' of pass '{step.name}' has no effect without machine")
    target = (instance.target or DEFAULT_TARGET).but(**parts)
    target.check_layout()
    changed: Pass = replace(instance, target=target)
    return changed


def _with_option(step: Pass, option: str, text: str) -> Pass:
    """`step` with one option set from its text; dashes and underscores in option names are equal."""
    instance: Any = step
    key = option.replace("-", "_")
    names = [*defaults(step)]
    if key not in names:
        expected = f"expected one of {', '.join(names)}{did_you_mean(key, names)}" if names else "it has none"
        raise MeshError(f"error: pass '{step.name}' has no option '{option}', {expected}")
    kind = get_type_hints(type(step))[key]
    try:
        changed: Pass = replace(instance, **{key: _value(kind, text)})
    except MeshError:
        raise
    except (KeyError, ValueError):
        raise MeshError(
            f"error: option '{option}' of pass '{step.name}' cannot be '{text}', {_expectation(kind, text)}"
        ) from None
    return changed


_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def _value(kind: Any, text: str) -> object:
    if kind is bool:
        return _BOOLEANS[text]
    if choices := get_args(kind):
        return {str(choice): choice for choice in choices}[text]
    return kind(text)


def _expectation(kind: Any, text: str) -> str:
    if kind is bool:
        return "expected true or false"
    if choices := get_args(kind):
        names = [*map(str, choices)]
        return f"expected one of {', '.join(names)}{did_you_mean(text, names)}"
    return f"expected {kind.__name__}"
