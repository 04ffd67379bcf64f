"""The next token of a language model whose output matrix is split along the vocabulary: the best, and the k best."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.ring import Term

DEVICES, BATCH, WIDTH, VOCABULARY, BEST = 8, 8, 256, 16384, 8


def greedy() -> Program:
    """argmax over the vocabulary."""
    why = "each device's largest logit and its index"
    plan = (Term("all-gather", DEVICES, DEVICES * BATCH * (4 + 4), 1, why),)
    return _sampling("sample_greedy", _greedy, plan)


def top_k() -> Program:
    """The largest logits and their indices, in order."""
    why = "each device's k largest logits and their indices"
    plan = (Term("all-gather", DEVICES, DEVICES * BATCH * BEST * (4 + 4), 1, why),)
    return _sampling("sample_top_k", _top_k, plan)


def _sampling(name: str, function: Callable[..., Tree], plan: tuple[Term, ...]) -> Program:
    arguments = (Argument((BATCH, WIDTH), P()), Argument((WIDTH, VOCABULARY), P(None, "m"), WIDTH**-0.5))
    return Program(name, (("m", DEVICES),), function, arguments, P(), plan)


def _greedy(x: jax.Array, output: jax.Array) -> jax.Array:
    return jnp.argmax(x @ output, axis=-1)


def _top_k(x: jax.Array, output: jax.Array) -> tuple[jax.Array, jax.Array]:
    return tuple(jax.lax.top_k(x @ output, BEST))
