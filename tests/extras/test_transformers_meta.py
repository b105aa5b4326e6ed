"""Models of the transformers library from the meta device: the values that one process draws, transformers' own."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers as hf
from harness import Member
from support.pair import SEED, naming
from torch import nn

import osdp

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SIZES, "num_key_value_heads": 2, "vocab_size": 32}
IMAGES = {"image_size": 8, "patch_size": 4}

MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
    "llama, tied": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, tie_word_embeddings=True)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**GROUPED, num_local_experts=4)),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES, vocab_size=32, max_position_embeddings=16)),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(d_model=16, d_ff=24, num_layers=2, num_heads=4, d_kv=4, vocab_size=32)
    ),
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**SIZES, **IMAGES)),
}


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return MODELS[name]()


def drawn(me: Member) -> None:
    for name in MODELS:
        whole = on_meta(name).to_empty(device="cpu")
        torch.manual_seed(SEED)
        whole.init_weights()
        for how in ("plan", "class"):
            model = on_meta(name)
            torch.manual_seed(SEED)
            if how == "plan":
                osdp.fully_shard(model, osdp.Plan.uniform(model, "FULL_SHARD"), me.group)
            else:
                model = osdp.FullyShardedDataParallel(model, me.group)
            with naming(f"{name}, {how}"):
                state, buffers = model.state_dict(), dict(model.named_buffers())
                for key, value in whole.state_dict().items():
                    assert torch.equal(state[key], value), key
                for key, value in whole.named_buffers():
                    assert torch.equal(buffers[key], value), key


def test_models_of_transformers_from_the_meta_device(ranks):
    ranks(drawn, world=2)


def test_experts_are_traced_without_values():
    tokens = torch.zeros(2, 8, dtype=torch.long)
    for dtype in (torch.float32, torch.bfloat16):
        described = osdp.describe(on_meta("mixtral").to(dtype), tokens)
        assert all(o.traced for o in described.operators if o.parameters)
