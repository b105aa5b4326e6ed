"""Small models of twelve families, each with a batch; those of transformers need `pip install transformers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.five_models import Subject, integers, together

TOKENS = 4000
WIDTH = 256
_TEXTS = ("input_ids", "labels")


class WithLoss(nn.Module):
    """A model of transformers that is called with tensors by `names` and returns its loss."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], **constants: Any) -> None:
        super().__init__()
        self.model, self.names, self.constants = model, names, constants

    def forward(self, *tensors: Tensor) -> Tensor:
        loss: Tensor = self.model(**dict(zip(self.names, tensors, strict=True)), **self.constants).loss
        return loss


class UNet(nn.Module):
    def __init__(self, c: int = 32) -> None:
        super().__init__()

        def block(i: int, o: int) -> nn.Sequential:
            first = (nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU())
            return nn.Sequential(*first, nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU())

        self.down = nn.ModuleList([block(3, c), block(c, 2 * c), block(2 * c, 4 * c)])
        self.middle = block(4 * c, 8 * c)
        widths = (8 * c, 4 * c, 2 * c)
        self.up = nn.ModuleList(nn.ConvTranspose2d(w, w // 2, 2, 2) for w in widths)
        self.merge = nn.ModuleList(block(w, w // 2) for w in widths)
        self.head = nn.Conv2d(c, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for down in self.down:
            x = down(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), kept.pop()], 1))
        loss: Tensor = self.head(x).square().mean()
        return loss


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(TOKENS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, 2 * WIDTH, 2, batch_first=True)
        self.head = nn.Linear(2 * WIDTH, TOKENS)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.lstm(self.token(tokens))[0]).flatten(0, 1), targets.flatten())


class Dlrm(nn.Module):
    """Tables of many sizes; their rows' products and the dense features go through a top of linears."""

    TABLES = (20000, 5000, 40000, 300, 10000, 1000)

    def __init__(
        self, tables: Sequence[int] = TABLES, first: int = 512, second: int = 256, width: int = 64
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for rows in tables)
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        n = len(tables) + 1
        self.top = nn.Sequential(
            *(nn.Linear(width + n * n, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU()),
            nn.Linear(second, 1),
        )

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = torch.stack(
            [x, *(t(i % t.num_embeddings) for t, i in zip(self.tables, sparse.T, strict=True))], 1
        )
        y = self.top(torch.cat([x, (rows @ rows.transpose(1, 2)).flatten(1)], 1))
        return F.binary_cross_entropy_with_logits(y, torch.ones_like(y))


def normal(*sizes: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(sizes, generator=generator)


def _tokens(length: int) -> Any:
    """A batch of four: tokens, and as many labels."""
    return together(integers(TOKENS, 4, length), integers(TOKENS, 4, length))


def _made(name: tuple[str, str], config: dict[str, Any]) -> nn.Module:
    import transformers

    made: nn.Module = getattr(transformers, name[0])(getattr(transformers, name[1])(**config))
    return made


def _text(model: str, config: str, **options: Any) -> Subject:
    """A causal language model, whose labels are its tokens."""
    given = {"vocab_size": TOKENS, "hidden_size": WIDTH, "use_cache": False} | options

    class Model(WithLoss):
        def __init__(self) -> None:
            super().__init__(_made((model, config), given), _TEXTS)

    return Subject(Model, _tokens(64))


def _other(model: str, config: str, names: tuple[str, ...], batch: Any, **options: Any) -> Subject:
    return Subject(lambda: WithLoss(_made((model, config), options), names), batch)


_HEADS: dict[str, Any] = {"num_hidden_layers": 6, "num_attention_heads": 8}
_LLAMA: dict[str, Any] = {**_HEADS, "num_key_value_heads": 2, "intermediate_size": 688}
_MOE: dict[str, Any] = {**_LLAMA, "num_hidden_layers": 3, "intermediate_size": 256}
_PICTURES = ("pixel_values", "labels")

FAMILIES = {
    "Llama": _text("LlamaForCausalLM", "LlamaConfig", **_LLAMA),
    "DLRM": Subject(Dlrm, together(normal(64, 13), integers(40000, 64, 6))),
    "U-Net": Subject(UNet, together(normal(4, 3, 64, 64))),
    "Mixtral": _text("MixtralForCausalLM", "MixtralConfig", **_MOE, num_local_experts=4),
    "GPT-2": _other(
        "GPT2LMHeadModel",
        "GPT2Config",
        _TEXTS,
        _tokens(64),
        vocab_size=TOKENS,
        n_embd=WIDTH,
        n_layer=6,
        n_head=8,
        use_cache=False,
    ),
    "BERT": _other(
        "BertForMaskedLM",
        "BertConfig",
        _TEXTS,
        _tokens(64),
        vocab_size=TOKENS,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        **_HEADS,
    ),
    "ViT": _other(
        "ViTForImageClassification",
        "ViTConfig",
        _PICTURES,
        together(normal(4, 3, 64, 64), integers(10, 4)),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        image_size=64,
        patch_size=8,
        num_labels=10,
        **_HEADS,
    ),
    "LSTM": Subject(Lstm, _tokens(32)),
    "T5": _other(
        "T5ForConditionalGeneration",
        "T5Config",
        _TEXTS,
        _tokens(48),
        vocab_size=TOKENS,
        d_model=WIDTH,
        d_kv=32,
        d_ff=4 * WIDTH,
        num_layers=3,
        num_heads=8,
        use_cache=False,
        decoder_start_token_id=0,
    ),
    "Qwen2-MoE": _text(
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        **_MOE,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=256,
        shared_expert_intermediate_size=256,
    ),
    "Swin": _other(
        "SwinForImageClassification",
        "SwinConfig",
        _PICTURES,
        together(normal(4, 3, 64, 64), integers(10, 4)),
        image_size=64,
        patch_size=4,
        embed_dim=48,
        depths=[2, 2, 2],
        num_heads=[2, 4, 8],
        window_size=4,
        num_labels=10,
    ),
    "Mamba": _text(
        "MambaForCausalLM", "MambaConfig", num_hidden_layers=3, state_size=8, expand=2, time_step_rank=16
    ),
}
