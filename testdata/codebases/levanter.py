"""levanter: its `Trainer` of language models over haliax' named axes, in pure FSDP and with tensor parallelism."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jmp
import numpy as np
import optax
from levanter.checkpoint import CheckpointerConfig
from levanter.models.llama import LlamaConfig
from levanter.models.lm_model import LmExample
from levanter.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig

from testdata.codebases.mesh import STEPS, integers


def _loss(model: Any, example: Any, *, key: Any = None) -> Any:
    """Of next tokens. The library's own hands a mask of floating-point numbers to `jnp.mean`, which jax 0.10 refuses."""
    targets = hax.nn.one_hot(hax.roll(example.tokens, -1, model.Pos), model.Vocab)
    return hax.nn.cross_entropy_loss(model(example.tokens, example.attn_mask, key=key), model.Vocab, targets)


def _trained(**options: Any) -> Any:
    """Steps of a Llama as `levanter.main.train_lm` takes them, on batches that its loader would give."""
    sizes = {"seq_len": 16, "hidden_dim": 64, "intermediate_dim": 128, "num_layers": 2, "num_heads": 4, "num_kv_heads": 4}
    model = LlamaConfig(**sizes, initializer_range=0.1)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainerConfig(
            id="run", seed=0, mp=jmp.get_policy("f32"), tracker=NoopConfig(), num_train_steps=STEPS, train_batch_size=8,
            checkpointer=CheckpointerConfig(base_path=folder), log_dir=Path(folder), log_jaxprs=False, log_xla_hlo=False,
            require_accelerator=False, **options,
        )  # fmt: skip
        vocabulary, batch = hax.Axis("vocab", 128), hax.Axis("batch", 8)
        losses = []
        with Trainer(config, optax.sgd(0.5), _loss, add_default_hooks=False) as trainer:
            state = trainer.initial_state(
                jax.random.PRNGKey(0), model_init=lambda: model.build(vocabulary, key=jax.random.PRNGKey(1))
            )  # fmt: skip
            for turn in range(STEPS):

                def example(tokens: Any) -> Any:
                    return hax.shard(hax.vmap(LmExample.causal, batch)(tokens), trainer.compute_axis_mapping)

                tokens = hax.named(integers(128, 8, 16, seed=turn), (batch, model.Pos))
                info = trainer.train_step(state, hax.named_jit(example)(tokens))
                state = info.state
                losses.append(np.float32(info.loss))
        return losses, eqx.filter(state.model, eqx.is_array)


def fsdp() -> Any:
    """Parameters along "data", which is the batch's axis, too."""
    return _trained()


def tensor_parallel() -> Any:
    """Heads and feed-forward layers along "model" besides."""
    return _trained(model_axis_size=4, tensor_parallel_axes=["mlp", "heads", "kv_head"])


def accumulated() -> Any:
    """Gradients of microbatches accumulated in a loop, on a mesh with replicas."""
    return _trained(replica_ici_axis_size=2, per_device_parallelism=1, model_axis_size=2, tensor_parallel_axes=["mlp", "heads"])
