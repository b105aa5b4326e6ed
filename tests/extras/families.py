"""Families: small models of the transformers library, from configs, with a batch for each. Nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import: it must not ask the network for anything
import torch
import transformers as hf
from torch import nn

WORDS, TOKENS = 97, 16
Batch = dict[str, torch.Tensor]
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
COMMON = {"vocab_size": WORDS, "max_position_embeddings": 64}
NO_DROPOUT = {"attention_dropout": 0.0}


@dataclass(frozen=True)
class Family:
    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    generates: bool = True
    tolerance: float = 1e-9  # of losses and gradients in float64


def text(samples: int) -> Batch:
    words = torch.randint(1, WORDS, (samples, TOKENS))
    return {"input_ids": words, "labels": words}


def padded(samples: int) -> Batch:
    """As many words of every sample count, so that a mean over samples is one over words."""
    mask = torch.ones(samples, TOKENS, dtype=torch.long)
    mask[:, -3:] = 0
    batch = text(samples)
    return {**batch, "attention_mask": mask, "labels": batch["labels"].masked_fill(mask == 0, -100)}


def translation(samples: int) -> Batch:
    return {"input_ids": text(samples)["input_ids"], "labels": torch.randint(1, WORDS, (samples, 9))}


def images(samples: int) -> Batch:
    return {"pixel_values": torch.randn(samples, 3, 32, 32), "labels": torch.randint(0, 10, (samples,))}


def gpt2() -> nn.Module:
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=WORDS, n_positions=64, n_embd=32, n_layer=3, n_head=4, **none)
    )


def opt() -> nn.Module:
    more = {"ffn_dim": 64, "word_embed_proj_dim": 16, "dropout": 0.0, "layerdrop": 0.0}
    return hf.OPTForCausalLM(hf.OPTConfig(**COMMON, **SIZES, **NO_DROPOUT, **more))


def llama() -> nn.Module:
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(**COMMON, **SIZES, **NO_DROPOUT, intermediate_size=88, num_key_value_heads=2)
    )


def mixtral() -> nn.Module:
    more = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 48,
        "num_key_value_heads": 2,
    }
    config = hf.MixtralConfig(**COMMON, **SIZES, **NO_DROPOUT, **more, output_router_logits=False)
    config._experts_implementation = "eager"
    return hf.MixtralForCausalLM(config)


def t5() -> nn.Module:
    config = hf.T5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config)


def bert() -> nn.Module:
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return hf.BertForMaskedLM(hf.BertConfig(**COMMON, **SIZES, **none, intermediate_size=64))


def swin() -> nn.Module:
    config = hf.SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10,
        drop_path_rate=0.0,
    )  # fmt: skip
    return hf.SwinForImageClassification(config)


FAMILIES = {
    "gpt2": Family(gpt2, text, tolerance=1e-6),  # its loss is computed in float32
    "opt": Family(opt, padded),
    "llama": Family(llama, text, tolerance=1e-6),  # its norms and positions are computed in float32
    "mixtral": Family(mixtral, text, tolerance=1e-6),
    "t5": Family(t5, translation),
    "bert": Family(bert, padded, generates=False),
    "swin": Family(swin, images, generates=False),
}


def model(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return FAMILIES[name].build().double().train()


def batch(name: str, seed: int, samples: int) -> Batch:
    torch.manual_seed(seed)
    made = FAMILIES[name].batch(samples)
    return {k: v.double() if v.is_floating_point() else v for k, v in made.items()}
