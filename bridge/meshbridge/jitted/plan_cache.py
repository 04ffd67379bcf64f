"""Partitioned modules that are kept in a folder, `MESHBRIDGE_CACHE_DIR`, for other processes and for later.

An entry is named by a hash of all that a plan depends on: the source module without its locations, as JAX's own cache of compiled
programs has it, the options and in them the machine, the sharding rules that the user has registered, the code of meshbridge, and
the versions of JAX. It is a hash of that name and of the rest of the file, then MLIR bytecode: an entry under another name is
one of another program, whose plan would compute something else.

Any number of threads and processes may share a folder: an entry is written beside its name and renamed, and whoever comes second
writes the same plan.
"""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import jaxlib.version

from meshbridge import partitioning, pipeline
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.ops.sharding_rules import USER_RULES
from meshbridge.read import files, formats
from meshbridge.text import visible

VARIABLE = "MESHBRIDGE_CACHE_DIR"
"""The environment variable that names the folder; without it nothing is kept."""

_SUFFIX = ".plan"
_DIGEST = hashlib.sha256
_log = logging.getLogger("meshbridge")


class CacheWarning(UserWarning):
    """An entry of the cache that cannot be read, or a folder that cannot be written to. The program is partitioned anew."""


def partition_module(module: ir.Module, options: pipeline.Options) -> None:
    """`partitioning.partition_module`, or what it has left of the same module before, if a folder for that is named.

    Raises MeshError with a located diagnostic. Warns by CacheWarning of an entry that is damaged, and of a folder that cannot be
    written to.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        partitioning.partition_module(module, options)
        return
    entry = Path(folder) / f"{_key(module, options)}{_SUFFIX}"
    if (kept := _load(entry, module.context)) is not None:
        _log.info("a plan of %s", entry)
        formats.replace_content(module, kept)
        return
    with partitioning.one_at_a_time(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        partitioning.partition_module(module, options)
    for each in said:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if not said:  # what is kept warns of nothing
        _store(entry, module)


def _key(module: ir.Module, options: pipeline.Options) -> str:
    text = module.operation.get_asm(enable_debug_info=False, print_generic_op_form=True, use_local_scope=True)
    rules = sorted((target, repr(rule)) for target, rule in USER_RULES.items())
    return _DIGEST("\0".join((_code(), str(text), repr(options), repr(rules))).encode()).hexdigest()


@cache
def _code() -> str:
    """What partitions: the versions of JAX, and the code of meshbridge and of whatever else reads programs for it."""
    digest = _DIGEST(f"{version('meshbridge')} {version('jax')} {jaxlib.version.__version__}".encode())
    for path in sorted(path for folder in _folders() for path in folder.rglob("*") if path.suffix in (".py", ".toml")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _folders() -> Iterator[Path]:
    for package in ("meshbridge", *formats.packages()):
        for folder in getattr(find_spec(package), "submodule_search_locations", None) or ():
            yield Path(folder)


def _load(entry: Path, ctx: ir.Context) -> ir.Module | None:
    """The module of an entry; None where there is none, or one that is not its own, of which it warns."""
    try:
        data = b"" if files.is_special(entry) else entry.read_bytes()  # to read a pipe may take forever
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _warn(entry, f"{error.strerror}, partitioned anew")
        return None
    size = _DIGEST().digest_size
    content = data[size:]
    if _seal(entry, content) != data[:size]:
        _warn(entry, "the entry is damaged, or of another program; partitioned anew")
        return None
    return mlir.parse(content, str(entry), ctx)


def _store(entry: Path, module: ir.Module) -> None:
    data = mlir.to_bytecode(module)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        if files.is_special(entry):
            raise MeshError("no file of ours has this name")
        files.write_bytes(str(entry), _seal(entry, data) + data)
    except (OSError, MeshError) as error:
        _warn(entry, f"the plan cannot be kept: {error}")


def _seal(entry: Path, content: bytes) -> bytes:
    """What an entry begins with: it binds the content to the name, which says what it is the plan of."""
    return _DIGEST(entry.name.removesuffix(_SUFFIX).encode() + b"\0" + content).digest()


def _warn(entry: Path, text: str) -> None:
    warnings.warn(CacheWarning(visible(f"{entry}: warning: {text}")), stacklevel=5)
