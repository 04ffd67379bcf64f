"""`ring-attention`: keys and values travel around the devices that share a sequence, instead of being gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import ClassVar

from meshbridge.collectives.canonicalize import Simplify
from meshbridge.cost.memory import memory
from meshbridge.ir.mlir import ir, main_function
from meshbridge.ir.passes import Pass, register
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.attention.attention_gradients import AttentionGradients, attention_gradients
from meshbridge.overlap.attention.balanced_gradients import causal_gradients, gradient_ring_of
from meshbridge.overlap.attention.balanced_ring import causal_queries, ring_of
from meshbridge.overlap.attention.online_softmax import OnlineSoftmax, computes_parts, online_softmaxes
from meshbridge.overlap.attention.softmax_statistics import reuse_softmax_statistics
from meshbridge.overlap.costed import Trial, keep_faster
from meshbridge.read.formats import copy_module

_Part = OnlineSoftmax | AttentionGradients


@register
@dataclass(frozen=True)
class RingAttention(Pass):
    """Sums softmax-weighted values over one shard of keys after the other, while the next shards travel.

    Input:   %0 = mesh.all_gather %k on @m mesh_axes = [0] gather_axis = 0 : tensor<4x8xf32> -> tensor<8x8xf32>
             %1 = mesh.all_gather %v on @m mesh_axes = [0] gather_axis = 0 : tensor<4x8xf32> -> tensor<8x8xf32>
             %2 = stablehlo.dot_general %q, %0, contracting_dims = [1] x [1] : tensor<4x8xf32>    // scores
             %3 = stablehlo.reduce(%2 init: -inf) applies stablehlo.maximum across dimensions = [1]
             %4 = exponential (%2 - %3), which (a sum of it along keys) divides
             %5 = stablehlo.dot_general %4, %1, contracting_dims = [1] x [0]
    Output:  for the shards %k, %v of this device, then for those that come by
             %k1 = mesh.shift %k on @m mesh_axes = [0] shift_axis = 0 offset = 1 rotate
             %v1 = mesh.shift %v on @m mesh_axes = [0] shift_axis = 0 offset = 1 rotate
             and so on, and as many the other way:
             scores of the shard; the largest so far; exponentials of what is left when that is subtracted;
             (the sum of exponentials so far, and that of weighted values) * exponential (the largest before - the largest now)
               + those of the shard
             behind the last shard, the one sum divides the other

    As many bytes as the gathers send, in more collectives; neither all keys and values nor all scores are held. Scores may be
    computed by anything that has an element for each key: masks of iotas begin at the shard's first key, other masks are sliced.
    Sums are added up in float32 where they are narrower, in another order, so that results round differently. What reads
    exponentials otherwise keeps the gathers.

    A backward pass, in which exponentials are multiplied with gradients, is a ring of its own: for each shard scores and
    exponentials are computed again, from the largest score and the sum that the forward pass has, and

    Input:   %0 = mesh.reduce_scatter %dk on @m mesh_axes = [0] scatter_axis = 0 : tensor<8x8xf32> -> tensor<4x8xf32>
    Output:  part of the keys that the device before keeps
             %1 = mesh.shift (that) on @m mesh_axes = [0] shift_axis = 0 offset = 1 rotate;  %1 + part of the keys before those
             and so on, until the own keys' comes home, to which all devices have added

    A balanced ring, where a causal mask hides from each half of a device's queries all keys of later halves:

    Input:   %s = stablehlo.select (position of the query >= position of the key), (scores), -inf
    Output:  %q0, %k0, %v0, %q1, %k1, %v1 = halves number i and 2n - 1 - i of the sequence on device i of n, of which each had its
               own two, by stablehlo.collective_permute
             for the halves that device j had, which travel as above: scores, exponentials and sums of
               (%q1, %k0), and of (%q0, %k0) where j < i, (%q1, %k1) where j > i, both where j = i
             what is found for queries back to where they were, by stablehlo.collective_permute

    Half of the products and 1/2n more on every device, and the bytes of the permutes. A backward pass becomes one likewise.
    """

    name: ClassVar[str] = "ring-attention"
    option_aliases: ClassVar[Mapping[str, str]] = {"memory": "memory_limit"}
    target: CompileTarget | None = None
    """The device whose predicted step is to become shorter; without one all that can be is a ring. Above its memory limit a ring
    is also chosen if it only saves memory."""
    faster: bool = True
    "Whether rings are taken that make the step shorter; else only those that need less memory where it is short."
    steps: int = 16
    "The largest group whose keys travel, in as many steps as it has devices. Not measured."
    balance: bool = False
    "Without a machine: whether rings are balanced that a causal mask lets be."

    def run(self, module: ir.Module) -> bool:
        with module.context:
            # First what reads the weights, so that a forward pass can do without them.
            changed = [
                _rewrite(module, part(module), balance=self.balance)
                if self.target is None
                else self._take_what_pays(module, part, self.target)
                for part in (self._backward, self._forward)
            ]
            return any(changed)

    def _backward(self, module: ir.Module) -> list[_Part]:
        return [*attention_gradients(module, self.steps)]

    def _forward(self, module: ir.Module) -> list[_Part]:
        return [each for each in online_softmaxes(module, self.steps) if computes_parts(each)]

    def _take_what_pays(self, module: ir.Module, part: Callable[[ir.Module], list[_Part]], target: CompileTarget) -> bool:
        """Makes rings of those kinds, layers that look alike together, that make the step shorter, or memory less where it is
        short. Raises MeshError for a target that is no device."""
        kinds = dict.fromkeys(found.looks for found in part(module)) if self.faster or target.written_limit < inf else {}

        def is_kept(before: ir.Module, after: ir.Module, is_faster: bool) -> bool:
            return (self.faster and is_faster) or _saves_memory(before, after, target.written_limit)

        # Where the largest score is known, products write exponentials instead of scores.
        return bool(kinds) and keep_faster(
            module, target, [partial(_in_rings, part=part, kind=kind) for kind in kinds], epilogues=True, is_kept=is_kept
        )


def _in_rings(before: Trial, *, part: Callable[[ir.Module], list[_Part]], kind: object) -> Iterator[Trial]:
    """Copies in which those of a kind are rings, plain ones and, where some can be, balanced ones."""
    for balance in (False, True):
        copy = copy_module(before.module)
        alike = [found for found in part(copy) if found.looks == kind]
        if not balance or any(map(_is_causal, alike)):
            _rewrite(copy, alike, balance=balance)
            yield Trial(copy)


def _saves_memory(module: ir.Module, copy: ir.Module, limit: float) -> bool:
    if limit == inf:
        return False
    before, after = (memory(main_function(each)).peak for each in (module, copy))
    return before > limit and after < before


def _is_causal(part: _Part) -> bool:
    return causal_gradients(part) is not None if isinstance(part, AttentionGradients) else causal_queries(part) is not None


def _rewrite(module: ir.Module, found: Sequence[_Part], *, balance: bool) -> bool:
    """Makes rings of what was found in `module`, balanced ones where they can be, if that is asked for."""
    reuse_softmax_statistics(each for each in found if isinstance(each, AttentionGradients))
    for each in found:
        if isinstance(each, AttentionGradients):
            each.rewrite(partial(gradient_ring_of, balance=balance), balance=balance)
        else:
            each.rewrite(ring_of(each, balance=balance))
    if balance and found:
        Simplify().run(module)  # what halves are computed of is written for each of them
    return bool(found)
