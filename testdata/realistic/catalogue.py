"""Every realistic program by name, on any number of devices, with or without constraints on its activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from testdata.program import Program
from testdata.realistic.accumulated import accumulated
from testdata.realistic.adam import adam_zero1
from testdata.realistic.attention import context_parallel
from testdata.realistic.decode import decode
from testdata.realistic.dit import dit
from testdata.realistic.dropless import dropless
from testdata.realistic.gemma import gemma
from testdata.realistic.gpt import gpt
from testdata.realistic.griffin import griffin
from testdata.realistic.grpo import grpo
from testdata.realistic.llama import llama
from testdata.realistic.lora import lora
from testdata.realistic.mamba2 import mamba2
from testdata.realistic.mla import mla
from testdata.realistic.moe import mixture
from testdata.realistic.optimisers import optimised
from testdata.realistic.paged import paged_decode, paged_prefill
from testdata.realistic.pipeline import pipeline
from testdata.realistic.resnet import resnet50
from testdata.realistic.t5 import t5
from testdata.realistic.unet import unet
from testdata.realistic.vocabulary import vocabulary_loss


def _llama_accumulated(devices: int, *, annotated: bool) -> Program:
    return accumulated(llama("fsdp", devices, layers=8, scan=True, annotated=annotated), 4)


BUILDERS: dict[str, Callable[..., Program]] = {
    "llama32_scan_fsdp_tp": partial(llama, "fsdp_tp", layers=32, scan=True),
    "llama32_scan_fsdp": partial(llama, "fsdp", layers=32, scan=True),
    "llama4_fsdp_tp": partial(llama, "fsdp_tp", layers=4, scan=False),
    "llama4_fsdp": partial(llama, "fsdp", layers=4, scan=False),
    "gpt8_scan_dp_tp": partial(gpt, "dp_tp", layers=8, scan=True),
    "gpt8_scan_sp": partial(gpt, "sp", layers=8, scan=True),
    "gpt8_scan_fsdp_tp": partial(gpt, "fsdp_tp", layers=8, scan=True),
    "gpt4_dp_tp": partial(gpt, "dp_tp", layers=4, scan=False),
    "moe_lm": mixture,
    "resnet50": resnet50,
    "cp_attention": context_parallel,
    "vocab_loss": vocabulary_loss,
    "decode_heads": partial(decode, "heads"),
    "decode_sequence": partial(decode, "sequence"),
    "unet": unet,
    "adam_zero1": adam_zero1,
    "lora32_scan_fsdp": partial(lora, "fsdp", layers=32, scan=True),
    "llama8_scan_accumulated": _llama_accumulated,
    "t5_scan_fsdp_tp": partial(t5, "fsdp_tp"),
    "gemma8_scan_fsdp_tp": partial(gemma, "fsdp_tp"),
    "dit_scan": dit,
    "mamba8_scan_fsdp_tp": partial(mamba2, "fsdp_tp"),
    "griffin6_scan_fsdp_tp": partial(griffin, "fsdp_tp"),
    "paged_prefill": paged_prefill,
    "paged_decode": paged_decode,
    "dropless_fsdp_tp": partial(dropless, "fsdp_tp"),
    "mla_fsdp_tp": partial(mla, "fsdp_tp"),
    "pipeline_llama": pipeline,
    "muon_llama8_scan_fsdp": partial(optimised, "muon"),
    "adafactor_llama8_scan_fsdp": partial(optimised, "adafactor"),
    "grpo_llama8_scan_fsdp": partial(grpo, "fsdp"),
}
"""Name to maker: called with the number of devices and `annotated`."""

ANNOTATIONS = {"constrained": True, "inputs": False}
"""By name: constraints on activations, as practitioners write them; shardings of inputs and parameters only."""

SAME_WITHOUT = {"gpt8_scan_sp": "gpt8_scan_dp_tp"}
"""Programs that differ from another one by their constraints only."""


def variants(name: str) -> tuple[str, ...]:
    """The annotations in which the program of that name stands for itself."""
    return tuple(annotation for annotation, annotated in ANNOTATIONS.items() if annotated or name not in SAME_WITHOUT)


def build(name: str, annotation: str, devices: int) -> Program:
    """The program of that name. Raises ValueError with the known names if there is none."""
    if name not in BUILDERS or annotation not in ANNOTATIONS:
        raise ValueError(
            f"no program is named {name!r}, {annotation!r}; there are {', '.join(BUILDERS)}, {', '.join(ANNOTATIONS)}"
        )
    return BUILDERS[name](devices=devices, annotated=ANNOTATIONS[annotation])
