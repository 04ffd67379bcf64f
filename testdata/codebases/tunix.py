"""tunix: its trainers of language models, on a Qwen 3 of its own with the shardings that it has by default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
import qwix
from flax import nnx
from jax.sharding import Mesh
from tunix.models.qwen3 import model as qwen3
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix.sft import peft_trainer
from tunix.sft.utils import build_positions_from_mask, make_causal_attn_mask
from tunix.tests.test_common import MockVocab

from testdata.codebases.mesh import STEPS, integers, mesh_of

VOCABULARY, LENGTH = 128, 16


def _model(mesh: Mesh, seed: int = 0) -> Any:
    """A Qwen 3 of two layers, created on the mesh as its metadata say."""
    sizes = {"num_layers": 2, "vocab_size": VOCABULARY, "embed_dim": 64, "hidden_dim": 128, "num_heads": 4, "head_dim": 16}
    config = qwen3.ModelConfig(**sizes, num_kv_heads=4, rope_theta=10_000, norm_eps=1e-6)

    @nnx.jit
    def create() -> Any:
        model = qwen3.Qwen3(config, rngs=nnx.Rngs(seed))
        state = nnx.state(model)
        nnx.update(model, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
        return model

    with mesh:
        return create()


def _batches() -> Iterator[peft_trainer.TrainingInput]:
    for turn in range(STEPS):
        yield peft_trainer.TrainingInput(
            input_tokens=integers(VOCABULARY - 1, 8, LENGTH, seed=turn) + 1, input_mask=integers(8, 8, LENGTH, seed=9 + turn) > 0
        )


def _inputs(given: peft_trainer.TrainingInput) -> dict[str, Any]:
    mask = given.input_tokens != 0
    return {
        "input_tokens": given.input_tokens,
        "input_mask": given.input_mask,
        "positions": build_positions_from_mask(mask),
        "attention_mask": make_causal_attn_mask(mask),
    }


def _trained(model: Any, mesh: Mesh, optimizer: Any, of: Any = nnx.Param, **options: Any) -> Any:
    """The parameters, and the losses that the trainer's logger was told."""
    config = peft_trainer.TrainingConfig(eval_every_n_steps=100, max_steps=STEPS, **options)
    trainer = peft_trainer.PeftTrainer(model, optimizer, config).with_gen_model_input_fn(_inputs)
    losses: list[Any] = []
    log = trainer.metrics_logger.log

    def logged(prefix: str, name: str, value: Any, *others: Any, **named: Any) -> None:
        if name == "loss":
            losses.append(value)
        log(prefix, name, value, *others, **named)

    trainer.metrics_logger.log = logged
    with mesh:
        trainer.train(list(_batches()))
    return losses, nnx.to_pure_dict(nnx.state(model, of))


def sft() -> Any:
    """Supervised fine-tuning of all parameters, on fsdp x tp."""
    mesh = mesh_of(fsdp=4, tp=2)
    return _trained(_model(mesh), mesh, optax.sgd(0.5))


def lora() -> Any:
    """Parameters of low rank beside those of attention and feed-forward layers, put there by qwix, which alone are trained."""
    mesh = mesh_of(fsdp=4, tp=2)
    model = _model(mesh)
    with mesh:
        provider = qwix.LoraProvider(module_path=".*q_proj|.*kv_proj|.*gate_proj|.*down_proj|.*up_proj", rank=8, alpha=16.0)
        model = qwix.apply_lora_to_model(model, provider, rngs=nnx.Rngs(1), **model.get_model_input())
        state = nnx.state(model)
        nnx.update(model, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
    return _trained(model, mesh, optax.sgd(1.0), nnx.LoRAParam)


def _reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(each.split()))) for each in completions]


def grpo() -> Any:
    """Group-relative policy optimisation: rollouts by the library's own sampler, a reference, and steps, all on one mesh."""
    mesh = mesh_of(fsdp=4, tp=2)
    words = ["<pad>", "<s>", "</s>", *(f"w{index}" for index in range(3, VOCABULARY))]
    vocabulary = MockVocab({word: index for index, word in enumerate(words)})
    actor, reference = _model(mesh), _model(mesh)
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    cluster = rl_cluster.RLCluster(
        actor=actor,
        reference=reference,
        tokenizer=vocabulary,
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.sgd(0.5), eval_every_n_steps=100, max_steps=2, mini_batch_size=4, train_micro_batch_size=4
            ),
            rollout_config=RolloutConfig(max_tokens_to_generate=8, max_prompt_length=8, kv_cache_size=32, temperature=0.9),
        ),
    )
    config = GRPOConfig(num_generations=2, num_iterations=1, beta=0.04)
    learner = GRPOLearner(rl_cluster=cluster, algo_config=config, reward_fns=_reward)
    prompts = np.array(["w3 w4", "w5 w6 w7", "w8 w9 w10 w11", "w12"])
    learner.train([{"prompts": prompts}] * 2)
    return nnx.to_pure_dict(nnx.state(actor, nnx.Param))
