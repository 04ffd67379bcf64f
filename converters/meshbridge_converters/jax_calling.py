"""How JAX's programs are called from Python: trees of arguments, typed PRNG keys, arguments that `jax.jit` dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshbridge.ir.mlir import MeshError


@dataclass(frozen=True)
class TreeCalling:
    """A `formats.Calling` of a function that JAX has traced.

    `in_tree` is the tree of `(args, kwargs)`; `in_avals` and `out_avals` are flat, as JAX has them before typed keys become
    arrays of integers. `kept` are the positions of the arguments that the module takes. `whole` gives the function as it is
    partitioned with given options, `how`, to callers within a larger one; None where the value that the program came in cannot
    be called.
    """

    name: str
    in_tree: Any
    in_avals: Sequence[Any]
    out_tree: Any
    out_avals: Sequence[Any]
    kept: Sequence[int]
    whole: Callable[[object], Callable[..., Any]] | None
    how: object = None

    def planned(self, how: object) -> TreeCalling:
        """The same for a program that is partitioned with these options."""
        return replace(self, how=how)

    @property
    def count(self) -> int:
        """How many leaves the arguments have."""
        return len(self.in_avals)

    def labels(self) -> list[str]:
        """The kept arguments as the caller writes them: `args[0]['weights']`, `kwargs['scale']`."""
        every = self._labels()
        return [every[position] for position in self.kept]

    def _labels(self) -> list[str]:
        from jax import tree_util

        dummy = tree_util.tree_unflatten(self.in_tree, range(len(self.in_avals)))
        paths, _ = tree_util.tree_flatten_with_path(dummy)
        sides = ("args", "kwargs")
        return [sides[path[0].idx] + tree_util.keystr(path[1:]) for path, _ in paths]

    def flatten(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """The kept arguments as arrays, keys as their integers, 64-bit numpy arrays as `jax.jit` takes them."""
        import jax

        leaves, tree = jax.tree.flatten((tuple(arguments), dict(named)))
        if not self._fits(tree):
            raise MeshError(f"{self.name}: error: expected arguments of the structure {self.in_tree}, found {tree}")
        named_leaves = zip(self._labels(), leaves, self.in_avals, strict=True)
        values = [_plain(f"{self.name}: error: {label}", leaf, aval) for label, leaf, aval in named_leaves]
        return [values[position] for position in self.kept]

    def _fits(self, tree: Any) -> bool:
        """Whether arguments have the function's structure; those of a class that the artifact has by name, its keys."""
        from meshbridge_converters.jax_trees import portable

        return bool(tree == self.in_tree or portable(tree) == self.in_tree)

    def unflatten(self, results: Sequence[Any]) -> Any:
        """The results in the function's own tree, keys typed again."""
        import jax

        typed = [_typed(result, aval) for result, aval in zip(results, self.out_avals, strict=True)]
        return jax.tree.unflatten(self.out_tree, typed)

    def in_place(self, arguments: Sequence[Any], results: Sequence[Any], other: Any) -> tuple[Any, dict[str, Any], Any]:
        """The trees of arguments, of those by name, and of results, with other leaves."""
        import jax

        leaves = [other] * self.count
        for position, value in zip(self.kept, arguments, strict=True):
            leaves[position] = value
        positional, named = jax.tree.unflatten(self.in_tree, leaves)
        return positional, named, jax.tree.unflatten(self.out_tree, results)

    def trace(self, arguments: Sequence[Any], named: Mapping[str, Any], shardings: Sequence[Any]) -> Any:
        """Calls the partitioned function.

        The constraints bring the devices along: JAX otherwise takes a function of arguments on one device to run on one.
        """
        import jax

        if self.whole is None:
            hint = "compile a jax.export.Exported of the function, or the function itself with its arguments"
            raise MeshError(f"{self.name}: error: an executable of a jax.stages.Lowered cannot be traced\n  hint: {hint}")
        leaves, tree = jax.tree.flatten((tuple(arguments), dict(named)))
        if self._fits(tree):
            for position, sharding in zip(self.kept, shardings, strict=True):
                leaves[position] = _constrained(leaves[position], sharding)
            arguments, named = jax.tree.unflatten(self.in_tree, leaves)
        return self.whole(self.how)(*arguments, **named)


def _is_key(dtype: Any) -> bool:
    import jax

    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def _plain(where: str, value: Any, aval: Any) -> Any:
    """An argument for `aval` as an array of numbers, or as it is where that is for the executable to check."""
    import jax
    import numpy as np

    found = getattr(value, "dtype", None)
    if _is_key(aval.dtype):
        if found != aval.dtype or value.shape != aval.shape:
            said = type(value).__name__ if found is None else f"{found}{list(value.shape)}"
            hint = "jax.random.key makes keys of a type"
            raise MeshError(f"{where}: expected {aval.dtype}{list(aval.shape)}, found {said}\n  hint: {hint}")
        return jax.random.key_data(value)
    if found is not None and jax.dtypes.issubdtype(found, jax.dtypes.extended):
        raise MeshError(f"{where}: expected {aval.dtype.name}{list(aval.shape)}, found {found}{list(value.shape)}")
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value, jax.dtypes.canonicalize_dtype(value.dtype))
    return value


def _constrained(value: Any, sharding: Any) -> Any:
    """`value` sharded like that, as it is where its type has a sharding already."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    kind = jax.typeof(value)
    if not kind.sharding.mesh.empty:
        return value
    of_keys = PartitionSpec(*sharding.spec[: kind.ndim])  # a key is one element here, and several numbers to XLA
    return jax.lax.with_sharding_constraint(value, NamedSharding(sharding.mesh, of_keys))


def _typed(result: Any, aval: Any) -> Any:
    import jax

    return jax.random.wrap_key_data(result, impl=aval.dtype._impl) if _is_key(aval.dtype) else result
