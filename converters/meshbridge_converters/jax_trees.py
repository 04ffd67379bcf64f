"""Trees of user classes in `jax.export` artifacts: optimizer states, modules, variables.

JAX writes and reads only the classes that a process has registered. Here every class is written by its name and the keys of its
children, and a class that the reading process has not registered becomes a `Node` with these keys. The artifact of a named tuple
is what JAX writes once `jax.export.register_namedtuple_serialization(kind, serialized_name="module.Class")` is called, so that
plain JAX reads it after the same call.

JAX's private registries of classes are used here alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, ClassVar, TypeVar

from jax import tree_util
from jax._src.export import _export  # nothing public asks what is registered, or takes it back

ReadT = TypeVar("ReadT")

_UNKNOWN = re.compile(r"unregistered type `([^`]+)`")
"""How JAX refuses to read a class that is not registered."""

_LEAF = tree_util.tree_structure(0)


@dataclass(frozen=True)
class Key:
    """The key of a child as JAX prints it: `.count`, `['kernel']`, `[0]`."""

    text: str

    def __str__(self) -> str:
        return self.text


class Node:
    """A node of a tree whose class this process has not registered. Children are read as those of the class: `node.count`,
    `node["kernel"]`, `node[0]`."""

    class_name: ClassVar[str] = ""

    def __init__(self, written: bytes, children: Iterable[Any]) -> None:
        self._written, self._children = written, tuple(children)

    @property
    def keys_of_children(self) -> tuple[str, ...]:
        """The keys as JAX prints them, in order; numbers if the artifact has none."""
        return _keys_in(self._written, len(self._children))

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Key, Any]], bytes]:
        """The children by their keys, and what the artifact says beside them."""
        return list(zip(map(Key, self.keys_of_children), self._children, strict=True)), self._written

    @classmethod
    def tree_unflatten(cls, written: bytes, children: Iterable[Any]) -> Node:
        """A node of the same class with other children."""
        return cls(written, children)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._child(f".{name}", AttributeError)

    def __getitem__(self, key: Any) -> Any:
        return self._child(f"[{key!r}]", KeyError)

    def _child(self, key: str, error: type[Exception]) -> Any:
        keys = self.keys_of_children
        if key not in keys:
            raise error(f"{self.class_name} has {', '.join(keys) or 'no children'}, not {key}")
        return self._children[keys.index(key)]

    def __repr__(self) -> str:
        children = zip(self.keys_of_children, self._children, strict=True)
        return f"<{self.class_name}: {', '.join(f'{key}={child!r}' for key, child in children)}>"


def _keys_in(written: bytes, count: int) -> tuple[str, ...]:
    """The keys that the artifact has for a node's children: names of fields, or keys as `portable` writes them."""
    numbers = tuple(str(tree_util.FlattenedIndexKey(index)) for index in range(count))
    try:
        known = json.loads(written)
    except ValueError:  # bytes in a form of the class's own
        return numbers
    keys = known.get("keys") if isinstance(known, dict) else known
    if not isinstance(keys, list) or len(keys) != count or not all(isinstance(key, str) for key in keys):
        return numbers
    return tuple(keys) if isinstance(known, dict) else tuple(f".{key}" for key in keys)


_lock = RLock()
_classes: dict[str, type[Node]] = {}


def _class_of(name: str) -> type[Node]:
    """The class of the nodes with this name: one for each, so that trees are equal by their classes."""
    with _lock:
        if name not in _classes:
            _classes[name] = tree_util.register_pytree_with_keys_class(type("Node", (Node,), {"class_name": name}))
        return _classes[name]


@contextmanager
def _readable(names: Iterable[str]) -> Iterator[None]:
    """JAX reads and writes nodes of these names meanwhile. A class that the user registers later has its name for itself."""
    with _lock:
        reading, writing = _export.deserialization_registry, _export.serialization_registry
        kinds = {name: _class_of(name) for name in names}
        unknown = [name for name in kinds if name not in reading]
        reading.update({name: (kinds[name], bytes, kinds[name].tree_unflatten) for name in unknown})
        writing.update({kind: (name, bytes) for name, kind in kinds.items()})
        try:
            yield
        finally:
            for name in unknown:
                del reading[name]
            for kind in kinds.values():
                writing.pop(kind, None)


def portable(tree: Any) -> Any:
    """The PyTreeDef with a `Node` for each class that no process can read unless it registers it."""
    data = tree.node_data()
    if data is None:
        return tree
    children = [portable(child) for child in tree.children()]
    if not _is_readable(*data):
        kind, _ = data
        data = _class_of(f"{kind.__module__}.{kind.__qualname__}"), _written(tree, kind)
    return tree.from_node_data_and_children(tree_util.default_registry, data, children)


def _is_readable(kind: type, about: Any) -> bool:
    if kind is dict:
        return all(isinstance(key, str) for key in about)
    return kind in (type(None), tuple, list) or kind in _export.serialization_registry or issubclass(kind, Node)


def _written(tree: Any, kind: type) -> bytes:
    """What the artifact says of a node beside its children: the names of a named tuple as JAX writes them, else keys."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return json.dumps(kind._fields).encode()
    leaves = [_LEAF] * len(tree.children())
    alone = tree.from_node_data_and_children(tree_util.default_registry, tree.node_data(), leaves)
    value = tree_util.tree_unflatten(alone, range(len(leaves)))
    paths, _ = tree_util.tree_flatten_with_path(value, is_leaf=lambda part: part is not value)
    return json.dumps({"keys": [str(path[0]) for path, _ in paths]}).encode()


def _names(tree: Any) -> set[str]:
    data = tree.node_data()
    own = {data[0].class_name} if data is not None and issubclass(data[0], Node) else set()
    return own.union(*map(_names, tree.children()))


def serialized(exported: Any, vjp_order: int) -> bytes:
    """The artifact of an Exported, with its trees as `portable` makes them."""
    exported = replace(exported, in_tree=portable(exported.in_tree), out_tree=portable(exported.out_tree))
    with _readable(_names(exported.in_tree) | _names(exported.out_tree)):
        return bytes(exported.serialize(vjp_order=vjp_order))


def read(deserialize: Callable[[], ReadT]) -> ReadT:
    """The Exported that `deserialize` reads, with a `Node` for each class that is not registered. Raises what it raises.

    The trees of its vjp, which JAX reads when somebody asks for it, have no classes: JAX flattens them."""
    names: frozenset[str] = frozenset()
    while True:
        try:
            with _readable(names):
                return deserialize()
        except ValueError as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is None or unknown[1] in names:
                raise
            names |= {unknown[1]}
