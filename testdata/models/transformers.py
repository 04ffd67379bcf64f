"""The Flax models of Hugging Face's transformers, in random configurations."""

from __future__ import annotations

from typing import Any

import optax
import transformers as hf

from testdata.models.model import Model, integers, numbers, training

SMALL: dict[str, Any] = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def _language(model: Any) -> Model:
    tokens = integers(256, 32, 32)

    def loss(parameters: Any, tokens: Any) -> Any:
        logits = model(tokens, params=parameters).logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

    return training(loss, model.params, tokens)


def _vision() -> Model:
    config = hf.ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        image_size=32,
        patch_size=8,
        num_labels=128,
    )
    model = hf.FlaxViTForImageClassification(config)

    def loss(parameters: Any, batch: Any) -> Any:
        logits = model(batch[0], params=parameters).logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    return training(loss, model.params, (numbers(32, 3, 32, 32), integers(128, 32)))


MODELS = {
    "hf_gpt2": lambda: _language(
        hf.FlaxGPT2LMHeadModel(hf.GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=64))
    ),
    "hf_bert": lambda: _language(
        hf.FlaxBertForMaskedLM(hf.BertConfig(**SMALL, intermediate_size=256, max_position_embeddings=64))
    ),
    "hf_llama": lambda: _language(
        hf.FlaxLlamaForCausalLM(hf.LlamaConfig(**SMALL, intermediate_size=256, max_position_embeddings=64))
    ),
    "hf_vit": _vision,
}
