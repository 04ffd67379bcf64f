"""`ring-attention`: sends keys and values around the devices that share a sequence, instead of gathering them."""

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
from meshbridge.overlap.trial_rewrites import Trial, keep_faster
from meshbridge.read.formats import copy_module

_Part = OnlineSoftmax | AttentionGradients


@register
@dataclass(frozen=True)
class RingAttention(Pass):
    """Computes softmax-weighted sums over one shard of keys after the other, while the next shards travel.

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
             after the last shard, the one sum divides the other

    As many bytes as with gathers are sent, in more collectives; a device holds neither all keys and values nor all scores. Any
    computation of scores with one element per key works: masks of iotas start at the shard's first key, other masks are sliced.
    Sums are accumulated in float32 if they are narrower, and in another order, so results round differently. If exponentials have
    other readers, the gathers stay.

    A backward pass, in which exponentials are multiplied with gradients, is a ring of its own: for each shard it recomputes
    scores and exponentials from the maximum and the sum of the forward pass, and

    Input:   %0 = mesh.reduce_scatter %dk on @m mesh_axes = [0] scatter_axis = 0 : tensor<8x8xf32> -> tensor<4x8xf32>
    Output:  part of the keys that the device before keeps
             %1 = mesh.shift (that) on @m mesh_axes = [0] shift_axis = 0 offset = 1 rotate;  %1 + part of the keys before those
             and so on, until the own keys' comes home, to which all devices have added

    A balanced ring, if a causal mask hides all keys of later halves from each half of a device's queries:

    Input:   %s = stablehlo.select (position of the query >= position of the key), (scores), -inf
    Output:  %q0, %k0, %v0, %q1, %k1, %v1 = halves number i and 2n - 1 - i of the sequence on device i of n, of which each had its
               own two, by stablehlo.collective_permute
             for the halves that device j had, which travel as above: scores, exponentials and sums of
               (%q1, %k0), and of (%q0, %k0) where j < i, (%q1, %k1) where j > i, both where j = i
             what is found for queries back to where they were, by stablehlo.collective_permute

    This takes half of the products and 1/2n more on every device, plus the bytes of the permutes. A backward pass is balanced
    likewise.
    """

    name: ClassVar[str] = "ring-attention"
    option_aliases: ClassVar[Mapping[str, str]] = {"memory": "memory_limit"}
    target: CompileTarget | None = None
    """The device whose predicted step is shortened; without one every possible ring is written. Above its memory limit a ring is
    also chosen if it only saves memory."""
    faster: bool = True
    "Whether rings are chosen that shorten the step; if not, only those that save memory where it is short."
    steps: int = 16
    "The largest group whose keys travel, in as many steps as it has devices. Not measured."
    balance: bool = False
    "Without a device: whether rings under a causal mask are balanced."

    def run(self, module: ir.Module) -> bool:
        with module.context:
            # The backward pass first: it reads the weights, which the forward pass then no longer needs.
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
        return [softmax for softmax in online_softmaxes(module, self.steps) if computes_parts(softmax)]

    def _take_what_pays(self, module: ir.Module, part: Callable[[ir.Module], list[_Part]], target: CompileTarget) -> bool:
        """Writes rings of those kinds, equal layers together, that shorten the step, or save memory where it is short. Raises
        MeshError for a target without a device."""
        can_pay = self.faster or target.written_limit < inf
        kinds = dict.fromkeys(candidate.cost_key for candidate in part(module)) if can_pay else {}

        def is_kept(before: ir.Module, after: ir.Module, is_faster: bool) -> bool:
            return (self.faster and is_faster) or _saves_memory(before, after, target.written_limit)

        # If the maximum is known, products write exponentials instead of scores.
        return bool(kinds) and keep_faster(
            module, target, [partial(_in_rings, part=part, kind=kind) for kind in kinds], epilogues=True, is_kept=is_kept
        )


def _in_rings(before: Trial, *, part: Callable[[ir.Module], list[_Part]], kind: object) -> Iterator[Trial]:
    """Copies in which parts of that kind are rings, plain ones and, if possible, balanced ones."""
    for balance in (False, True):
        copy = copy_module(before.module)
        of_kind = [candidate for candidate in part(copy) if candidate.cost_key == kind]
        if not balance or any(map(_is_causal, of_kind)):
            _rewrite(copy, of_kind, balance=balance)
            yield Trial(copy)


def _saves_memory(module: ir.Module, copy: ir.Module, limit: float) -> bool:
    if limit == inf:
        return False
    peak, new_peak = (memory(main_function(program)).peak for program in (module, copy))
    return peak > limit and new_peak < peak


def _is_causal(part: _Part) -> bool:
    return causal_gradients(part) is not None if isinstance(part, AttentionGradients) else causal_queries(part) is not None


def _rewrite(module: ir.Module, parts: Sequence[_Part], *, balance: bool) -> bool:
    """Replaces the parts of `module` by rings, with `balance` by balanced ones if possible."""
    reuse_softmax_statistics(part for part in parts if isinstance(part, AttentionGradients))
    for part in parts:
        if isinstance(part, AttentionGradients):
            part.rewrite(partial(gradient_ring_of, balance=balance), balance=balance)
        else:
            part.rewrite(ring_of(part, balance=balance))
    if balance and parts:
        Simplify().run(module)  # each half has a copy of its computation
    return bool(parts)
