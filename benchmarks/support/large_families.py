"""Models of several families as people train them on one GPU of 80 GB, each with a batch. All but two are of
transformers' configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from support.families import Dlrm, UNet, WithLoss
from support.five_models import Subject, integers, together

_TEXTS, _PICTURES = ("input_ids", "labels"), ("pixel_values", "labels")


def pictures(batch: int, side: int = 224) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn((batch, 3, side, side), generator=generator)


def _of(model: str, config: str, names: tuple[str, ...], batch: Any, **options: Any) -> Subject:
    def make() -> nn.Module:
        import transformers

        return WithLoss(getattr(transformers, model)(getattr(transformers, config)(**options)), names)

    return Subject(make, batch)


def _texts(model: str, config: str, words: int, batch: int, length: int, **options: Any) -> Subject:
    tokens = together(integers(words, batch, length), integers(words, batch, length))
    return _of(model, config, _TEXTS, tokens, vocab_size=words, **options)


TABLES = (2_000_000, 500_000, 4_000_000, 3_000, 100_000, 10_000) * 2  # of the DLRM
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_BERT = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
LARGE = {
    "GPT-2 medium": _texts(
        "GPT2LMHeadModel", "GPT2Config", 50257, 8, 1024, n_embd=1024, n_layer=24, n_head=16, use_cache=False
    ),
    "Llama 1B": _texts(
        "LlamaForCausalLM", "LlamaConfig", 128256, 4, 2048, hidden_size=2048, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, intermediate_size=8192, use_cache=False,
        max_position_embeddings=2048, tie_word_embeddings=True,
    ),
    "Qwen3 0.6B": _texts(
        "Qwen3ForCausalLM", "Qwen3Config", 151936, 4, 2048, hidden_size=1024, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, intermediate_size=3072, use_cache=False,
        tie_word_embeddings=True,
    ),
    "BERT large": _texts("BertForMaskedLM", "BertConfig", 30522, 32, 512, **_BERT, **_NO_DROPOUT),
    "T5 large": _texts(
        "T5ForConditionalGeneration", "T5Config", 32128, 8, 512, d_model=1024, d_kv=64, d_ff=4096, num_layers=24,
        num_heads=16, use_cache=False, decoder_start_token_id=0, dropout_rate=0.0,
    ),
    "ViT large": _of(
        "ViTForImageClassification", "ViTConfig", _PICTURES, together(pictures(64), integers(1000, 64)),
        **_BERT, **_NO_DROPOUT, num_labels=1000,
    ),
    "Swin base": _of(
        "SwinForImageClassification", "SwinConfig", _PICTURES, together(pictures(64), integers(1000, 64)),
        embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32], num_labels=1000, drop_path_rate=0.0,
    ),
    "ResNet-50": _of(
        "ResNetForImageClassification", "ResNetConfig", _PICTURES,
        together(pictures(128), integers(1000, 128)), num_labels=1000,
    ),
    "U-Net": Subject(lambda: UNet(128), together(pictures(16, 256))),
    "DLRM": Subject(
        lambda: Dlrm(TABLES, 2048, 2048),
        together(
            lambda g: torch.randn((8192, 13), generator=g), integers(4_000_000, 8192, len(TABLES))
        ),
    ),
}  # fmt: skip
