"""The programs of `testdata/realistic` in sizes that run in a test: float32, on 8 devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax

from testdata.program import Argument, Program
from testdata.realistic import decode, dit, dropless, gemma, gpt, griffin, grpo, mamba2, mla, moe, paged, pipeline, t5
from testdata.realistic.accumulated import accumulated
from testdata.realistic.adam import adam_zero1
from testdata.realistic.layers import WEIGHT_SCALE
from testdata.realistic.llama import llama
from testdata.realistic.lora import lora
from testdata.realistic.optimisers import optimised
from testdata.scaled import Sizes

DEVICES = 8

LLAMA = Sizes(width=32, hidden=64, vocabulary=64, heads=4, key_heads=4)
SEQUENCES = {"size": LLAMA, "tokens": 32, "length": 16}
GPT = gpt.Size(width=32, heads=4, vocabulary=64, sequences=2, length=16)
MOE = moe.Size(layers=2, width=32, hidden=64, heads=4, vocabulary=64, sequences=2, group=8, length=16)
DECODE = decode.Size(layers=2, width=32, hidden=64, heads=8, key_heads=4, cached=16, sequences=2)
T5 = t5.Size(
    width=32, hidden=64, heads=4, head=8, vocabulary=64, layers=2, buckets=8, farthest=12, sequences=4, inputs=16, targets=8
)
GEMMA = gemma.Size(width=32, hidden=64, heads=4, key_heads=4, head=8, vocabulary=64, pairs=2, window=6, length=16)
DIT = dit.Size(width=32, heads=4, layers=2, side=8, classes=16, waves=16, images=2)

MAMBA2 = mamba2.Size(width=32, heads=4, head=8, state=8, chunk=4, vocabulary=64, layers=2, sequences=2, length=16)
GRIFFIN = griffin.Size(width=32, hidden=64, heads=4, window=6, vocabulary=64, triples=2, sequences=2, length=16)
PAGED = paged.Size(width=32, hidden=64, heads=8, key_heads=4, layers=2, page=4, context=6, chunk=8, prompts=2, sequences=4)

DROPLESS = dropless.Size(width=32, hidden=32, heads=4, experts=6, chosen=2, layers=2, vocabulary=64, sequences=2, length=16)
MLA = mla.Size(
    width=32,
    heads=4,
    latent=16,
    plain=8,
    turned=4,
    value=8,
    experts=4,
    expert_hidden=32,
    shared_hidden=64,
    group=8,
    vocabulary=64,
    layers=2,
    sequences=2,
    length=16,
)
PIPELINE = pipeline.Size(model=LLAMA, layers=2, microbatches=6, length=16)

GRPO = grpo.Size(model=LLAMA, layers=2, group=8, tokens=32, length=16)


def _accumulated(devices: int, *, annotated: bool) -> Program:
    return accumulated(llama("fsdp", devices, layers=2, scan=True, annotated=annotated, **SEQUENCES), 2)


BUILDERS: dict[str, Callable[..., Program]] = {
    "llama_scan_fsdp_tp": partial(llama, "fsdp_tp", layers=2, scan=True, **SEQUENCES),
    "llama_fsdp": partial(llama, "fsdp", layers=2, scan=False, **SEQUENCES),
    "llama_scan_accumulated": _accumulated,
    "lora_scan_fsdp": partial(lora, "fsdp", layers=2, scan=True, **SEQUENCES),
    "gpt_scan_sp": partial(gpt.gpt, "sp", layers=2, scan=True, size=GPT),
    "gpt_fsdp_tp": partial(gpt.gpt, "fsdp_tp", layers=2, scan=False, size=GPT),
    "moe_lm": partial(moe.mixture, size=MOE),
    "decode_heads": partial(decode.decode, "heads", size=DECODE),
    "decode_sequence": partial(decode.decode, "sequence", size=DECODE),
    "adam_zero1": partial(adam_zero1, layers=2, size=GPT),
    "t5_scan_fsdp_tp": partial(t5.t5, "fsdp_tp", size=T5),
    "gemma_scan_fsdp_tp": partial(gemma.gemma, "fsdp_tp", size=GEMMA),
    "dit_scan": partial(dit.dit, size=DIT),
    "mamba_scan_fsdp_tp": partial(mamba2.mamba2, "fsdp_tp", size=MAMBA2),
    "griffin_scan_fsdp_tp": partial(griffin.griffin, "fsdp_tp", size=GRIFFIN),
    "paged_prefill": partial(paged.paged_prefill, size=PAGED),
    "paged_decode": partial(paged.paged_decode, size=PAGED),
    "dropless_fsdp_tp": partial(dropless.dropless, "fsdp_tp", size=DROPLESS),
    "mla_fsdp_tp": partial(mla.mla, "fsdp_tp", size=MLA),
    "pipeline_llama": partial(pipeline.pipeline, size=PIPELINE),
    "muon_llama_scan_fsdp": partial(optimised, "muon", layers=2, **SEQUENCES),
    "adafactor_llama_scan_fsdp": partial(optimised, "adafactor", layers=2, **SEQUENCES),
    "grpo_llama_scan_fsdp": partial(grpo.grpo, "fsdp", size=GRPO),
}
"""Name to maker: called with the number of devices and `annotated`."""


def build(name: str, *, annotated: bool) -> Program:
    """The program of that name, with float32 for bfloat16, and its matrices as large as so small a width needs."""
    program = BUILDERS[name](DEVICES, annotated=annotated)
    return replace(program, arguments=jax.tree.map(_wide, program.arguments))


def _wide(argument: Argument) -> Argument:
    if argument.element != "bfloat16":
        return argument
    is_matrix = argument.scale == WEIGHT_SCALE and not argument.centre
    return replace(argument, element="float32", scale=0.2 if is_matrix else argument.scale)
