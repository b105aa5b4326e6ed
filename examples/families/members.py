"""Small members of the paper's families, and OPT and BERT from transformers' configs: models that return their loss."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from gpt.model import Block
from torch import Tensor, nn

os.environ["HF_HUB_OFFLINE"] = "1"  # models are made from configs: nothing is downloaded
CONTEXT = 32


class Stack(nn.Module):
    """A minGPT of one block per width; neighbours of different widths are joined by a linear layer."""

    def __init__(self, vocabulary: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, widths[0])
        self.position = nn.Embedding(CONTEXT, widths[0])
        layers: list[nn.Module] = []
        for before, width in zip((widths[0], *widths), widths, strict=False):
            if before != width:
                layers.append(nn.Linear(before, width))
            layers.append(Block(width, heads=4))
        self.blocks = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(widths[-1])
        self.head = nn.Linear(widths[-1], vocabulary)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, characters: Tensor, targets: Tensor) -> Tensor:
        x = self.token(characters) + self.position(torch.arange(characters.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class WithLoss(nn.Module):
    """A model of transformers, called with inputs and labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return self.model(input_ids=inputs, labels=labels).loss


@dataclass(frozen=True)
class Member:
    shape: str
    make: Callable[[int], nn.Module]  # of the size of the vocabulary
    labels: str = (
        "next"  # characters; "same": the model shifts them itself; "masked": it fills in what is masked
    )


def stack(*widths: int) -> Member:
    shape = " + ".join(f"{widths.count(w)} x {w}" for w in dict.fromkeys(widths))
    return Member(shape, lambda vocabulary: Stack(vocabulary, widths))


def opt(vocabulary: int) -> nn.Module:
    from transformers import OPTConfig, OPTForCausalLM

    none = {"dropout": 0.0, "attention_dropout": 0.0, "layerdrop": 0.0, "use_cache": False}
    sizes = {"hidden_size": 96, "ffn_dim": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = OPTConfig(
        vocab_size=vocabulary, word_embed_proj_dim=96, max_position_embeddings=64, **sizes, **none
    )
    return WithLoss(OPTForCausalLM(config))


def bert(vocabulary: int) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {"hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    return WithLoss(
        BertForMaskedLM(BertConfig(vocab_size=vocabulary, max_position_embeddings=64, **sizes, **none))
    )


MEMBERS = {
    "N&D": stack(*[64] * 12),
    "W&S": stack(*[256] * 2),
    "I&C": stack(*[64] * 6, *[192] * 2),
    "OPT": Member("4 x 96", opt, labels="same"),
    "BERT": Member("4 x 96", bert, labels="masked"),
}


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """What FSDP2 is asked to gather together: the elements of the model's longest list of modules."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    return [layer for layer in max(lists, key=len) if not isinstance(layer, nn.Linear)]


def masked(characters: Tensor, mask: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """15% of the characters become `mask`; these alone are labels."""
    chosen = torch.rand(characters.shape, generator=generator) < 0.15
    chosen[:, 0] = True  # a mean over none would be NaN
    return characters.masked_fill(chosen, mask), characters.masked_fill(~chosen, -100)
