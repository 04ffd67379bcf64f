"""Names of the arrays in Flax's nnx objects.

`nnx.jit` flattens a module or an optimizer into a graph and a list of arrays, so JAX names an array by its position in that list:
`model.states[0][7]`. The graph says where the array was: `model.blocks[0].down.kernel`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshbridge.dialect.names import RESULT_INFO, name_of
from meshbridge.ir.mlir import entries, ir, main_function, set_entries

if TYPE_CHECKING:
    from meshbridge_converters.jax_calling import TreeCalling


def rename(module: ir.Module, calling: TreeCalling) -> None:
    """Names the arguments and results of `main` that are arrays of nnx objects by their path in the object."""
    nnx = sys.modules.get("flax.nnx")  # whoever has such an object has loaded it
    if nnx is None:
        return
    inputs, outputs = _positions(calling.in_tree, nnx), _positions(calling.out_tree, nnx)
    if not inputs and not outputs:
        return
    with module.context:
        _rename_arguments(main_function(module), calling.kept, inputs)
        _rename_results(main_function(module), calling.out_tree.num_leaves, outputs)


def _rename_arguments(main: ir.Operation, kept: Sequence[int], positions: Mapping[int, tuple[str, str]]) -> None:
    arguments = list(main.regions[0].blocks[0].arguments)
    # A platform index and tokens come before the arrays, on both sides.
    for leaf, argument in zip(kept, arguments[len(arguments) - len(kept) :], strict=True):
        if name := _renamed(name_of(argument), positions.get(leaf)):
            argument.set_location(ir.Location.name(name))


def _rename_results(main: ir.Operation, count: int, positions: Mapping[int, tuple[str, str]]) -> None:
    attributes = entries(main, "res_attrs")
    for leaf, attribute in enumerate(attributes[len(attributes) - count :]):
        named = ir.StringAttr(attribute[RESULT_INFO]).value if RESULT_INFO in attribute else ""
        if name := _renamed(named, positions.get(leaf)):
            attribute[RESULT_INFO] = ir.StringAttr.get(name)
    set_entries(main, "res_attrs", attributes)


def _renamed(name: str, position: tuple[str, str] | None) -> str:
    """The name with the path in the object instead of the position in the list; "" if it has no such position."""
    if position is None or not name.endswith(position[0]):
        return ""
    return name.removesuffix(position[0]) + position[1]


def _positions(tree: Any, nnx: Any) -> Mapping[int, tuple[str, str]]:
    """By its number among all leaves of a tree of arguments or results: the key of each array of an nnx object below that object,
    as JAX writes it, and its path in the object."""
    from jax import tree_util

    def is_object(node: object) -> bool:
        return isinstance(node, nnx.extract.NodeStates)

    positions = {}
    numbered = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    with nnx.graph.merge_context(None, True) as merging:  # objects share variables: one that is known already is only referred to
        for node in tree_util.tree_leaves(numbered, is_leaf=is_object):
            if not is_object(node) or node._graphdef is None:
                continue
            keys = {leaf: tree_util.keystr(path) for path, leaf in tree_util.tree_flatten_with_path(node)[0]}
            for path, leaf in tree_util.tree_flatten_with_path(nnx.state(merging.unflatten(node.graphdef, *node.states)))[0]:
                if leaf in keys:
                    positions[leaf] = keys[leaf], _text(path)
    return positions


def _text(path: Sequence[Any]) -> str:
    """A path of `nnx.state` as Python reads it from the object: `.blocks[0].kernel` for `['blocks'][0]['kernel'].value`."""
    keys = [getattr(key, "key", str(key)) for key in path if str(key) != ".value"]
    return "".join(f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]" for key in keys)
