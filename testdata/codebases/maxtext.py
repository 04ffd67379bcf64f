"""MaxText: its own training loop, from the command line's options to the state, of small models of its families."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import maxtext
import numpy as np
from maxtext.trainers.pre_train import train

from testdata.codebases.mesh import STEPS

BASE = Path(maxtext.__file__).parent / "configs" / "base.yml"

SMALL = {
    "steps": STEPS,
    "dataset_type": "synthetic",
    "hardware": "cpu",
    "skip_jax_distributed_system": True,
    "enable_checkpointing": False,
    "enable_goodput_recording": False,
    "monitor_goodput": False,
    "log_config": False,
    "jax_cache_dir": "",
    "opt_type": "sgd",
    "learning_rate": 0.5,
    "warmup_steps_fraction": 0.0,
    "attention": "dot_product",
    "dtype": "float32",
    "matmul_precision": "highest",
    "base_emb_dim": 64,
    "base_mlp_dim": 128,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 4,
    "base_num_decoder_layers": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_target_length": 32,
    "per_device_batch_size": 1,
    "override_model_config": True,
}
"""What the tiny runs have in common: no checkpoint, no service, plain gradient descent, single precision."""


def _trained(**options: Any) -> Any:
    """The losses and gradients' norms of all steps, and the parameters."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics"
        given = {**SMALL, "run_name": "run", "base_output_directory": folder, "metrics_file": metrics, **options}
        config, recorder = train.initialize(["train", str(BASE), *(f"{name}={value}" for name, value in given.items())])
        state = train.train_loop(config, recorder)
        steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    said = [{name: np.float32(step[name]) for name in ("learning/loss", "learning/raw_grad_norm")} for step in steps]
    return said, [each for each in jax.tree.leaves(state) if jax.numpy.issubdtype(each.dtype, jax.numpy.floating)]


def llama() -> Any:
    """Layers under a scan, on fsdp x tensor."""
    return _trained(model_name="llama2-7b", ici_fsdp_parallelism=4, ici_tensor_parallelism=2)


def llama_unscanned() -> Any:
    """The same, layer by layer, with sequences along a context axis."""
    return _trained(model_name="llama3-8b", scan_layers=False, ici_fsdp_parallelism=4, ici_context_parallelism=2)


def gemma() -> Any:
    """Gemma 2, whose layers alternate local and global attention, with gradients accumulated."""
    return _trained(model_name="gemma2-2b", ici_fsdp_parallelism=8, gradient_accumulation_steps=2)


def mixtral() -> Any:
    """A mixture of experts along an axis of their own, dense products of all experts."""
    sizes = {
        "base_moe_mlp_dim": 128,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "megablox": False,
        "sparse_matmul": False,
        "capacity_factor": 1.0,
    }
    return _trained(model_name="mixtral-8x7b", ici_fsdp_parallelism=4, ici_expert_parallelism=2, **sizes)


def qwen() -> Any:
    """Qwen 3, whose queries and keys are normalised, all layers computed again in the backward pass."""
    return _trained(model_name="qwen3-0.6b", ici_fsdp_parallelism=4, ici_tensor_parallelism=2, remat_policy="full")
