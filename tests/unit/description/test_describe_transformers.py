"""`describe` on models of the transformers library, built from small configs: nothing is downloaded."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import: it must not ask the network for anything
import transformers as hf

import osdp
from osdp.description.model_description import ModelDescription, Operator
from tests.unit.description.real_forward import live_bytes, saved_bytes

VOCABULARY, TOKENS = 97, 24
SMALL = {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
Sample = dict[str, torch.Tensor]


def tokens(batch: int, length: int = TOKENS) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (batch, length))


def language(batch: int) -> Sample:
    return {"input_ids": tokens(batch), "labels": tokens(batch)}


def padded(batch: int) -> Sample:
    mask = torch.ones(batch, TOKENS, dtype=torch.long)
    mask[:, -3:] = 0
    return {**language(batch), "attention_mask": mask}


def translation(batch: int) -> Sample:
    return {"input_ids": tokens(batch), "labels": tokens(batch, 12)}


def image(batch: int) -> Sample:
    return {"pixel_values": torch.randn(batch, 3, 32, 32), "labels": torch.randint(0, 10, (batch,))}


def gpt2(**options: Any) -> nn.Module:
    config = hf.GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, **options)
    config.bos_token_id = config.eos_token_id = 0
    return hf.GPT2LMHeadModel(config)


def opt(**options: Any) -> nn.Module:
    return hf.OPTForCausalLM(
        hf.OPTConfig(
            **SMALL,
            hidden_size=32,
            num_hidden_layers=2,
            ffn_dim=128,
            num_attention_heads=4,
            word_embed_proj_dim=16,
            **options,
        )
    )


def llama(**options: Any) -> nn.Module:
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            **SMALL,
            hidden_size=32,
            intermediate_size=88,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            **options,
        )
    )


def bert(**options: Any) -> nn.Module:
    options.pop("use_cache")
    config = hf.BertConfig(
        **SMALL, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, **options
    )
    return hf.BertForMaskedLM(config)


def t5(**options: Any) -> nn.Module:
    config = hf.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        **options,
    )
    return hf.T5ForConditionalGeneration(config)


def swin(**options: Any) -> nn.Module:
    options.pop("use_cache")
    config = hf.SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=10,
        **options,
    )
    return hf.SwinForImageClassification(config)


MODELS: dict[str, tuple[Callable[..., nn.Module], Callable[[int], Sample]]] = {
    "gpt2": (gpt2, language),
    "opt": (opt, language),
    "llama": (llama, language),
    "bert": (bert, padded),
    "t5": (t5, translation),
    "swin": (swin, image),
}


def described_saved_bytes(description: ModelDescription, batch: int) -> int:
    return sum(batch * o.saved_bytes_per_sample + o.saved_bytes_fixed for o in description.operators)


@functools.cache
def described(name: str, attention: str) -> tuple[nn.Module, ModelDescription]:
    """In training mode with sdpa, in evaluation mode and with a cache of keys and values in eager."""
    build, sample = MODELS[name]
    train = attention == "sdpa"
    model = build(attn_implementation=attention, use_cache=not train).train(train)
    return model, osdp.describe(model, **sample(2))


def some(every: Iterable[Any], *in_ci: Any) -> list[Any]:
    """Parameters of a test: those of `in_ci` run in CI, the others in `make test-extras`."""
    each = [(one if isinstance(one, tuple) else (one,), one in in_ci) for one in every]
    return [pytest.param(*one, marks=[] if here else pytest.mark.extras) for one, here in each]


WAYS = [
    ("gpt2", "sdpa"),
    ("opt", "eager"),
    ("llama", "sdpa"),
    ("bert", "eager"),
    ("t5", "eager"),
    ("swin", "eager"),
]


@pytest.mark.parametrize(("name", "attention"), some(product(MODELS, ("sdpa", "eager")), *WAYS))
def test_bytes_are_those_of_a_real_forward_at_every_batch_size(name: str, attention: str) -> None:
    model, description = described(name, attention)
    assert description.parameter_bytes == sum(p.nbytes for p in model.parameters())
    assert all(o.traced for o in description.operators)
    for batch in (2, 3, 7):
        real = saved_bytes(model, MODELS[name][1](batch))
        assert described_saved_bytes(description, batch) == pytest.approx(real, rel=0.002)


@pytest.mark.parametrize("name", MODELS)
def test_saved_bytes_are_what_the_allocator_gives_out(name: str) -> None:
    model, description = described(name, "sdpa")
    live = live_bytes(model, MODELS[name][1](8))
    assert described_saved_bytes(description, 8) == pytest.approx(live, rel=0.01)


@pytest.mark.parametrize("name", some(("gpt2", "llama", "t5", "swin"), "gpt2", "t5"))
def test_what_the_model_returns_is_there_beside_what_it_saves(name: str) -> None:
    """Logits, and a cache of keys and values in an object of its own; each tensor once, saved or not."""
    build, sample = MODELS[name]
    model = build(attn_implementation="eager", use_cache=True).train()
    description = osdp.describe(model, **sample(2))
    held = 8 * description.output_bytes_per_sample
    assert held > 0
    live = live_bytes(model, sample(8), with_output=True)
    assert described_saved_bytes(description, 8) + held == pytest.approx(live, rel=0.01)


@pytest.mark.parametrize("name", some(MODELS, "gpt2", "t5"))
def test_the_meta_device_tells_the_same(name: str) -> None:
    build, sample = MODELS[name]
    with torch.device("meta"):
        model = build(attn_implementation="sdpa", use_cache=False).train()
    on_meta = {key: value.to("meta") for key, value in sample(2).items()}
    found, real = osdp.describe(model, **on_meta), described(name, "sdpa")[1]
    assert without_work(found) == without_work(real)
    flops, moved = zip(work_of_kernels(found), work_of_kernels(real), strict=True)
    assert flops[0] == flops[1] and moved[0] == pytest.approx(
        moved[1], rel=0.01
    )  # a question asks a kernel or two
    # Masks have no values there, so that one that real ones would spare may be made, at a moment that is a peak.
    for a, b in zip(found.operators, real.operators, strict=True):
        work = [2 * o.work_bytes_per_sample + o.work_bytes_fixed for o in (a, b)]
        assert work[0] == pytest.approx(work[1], rel=0.05)
        assert a.waiting_gradient_bytes == pytest.approx(b.waiting_gradient_bytes, rel=0.05)


def without_work(description: osdp.ModelDescription) -> osdp.ModelDescription:
    work = [field.name for field in dataclasses.fields(Operator) if "work_bytes" in field.name]
    none = dict.fromkeys((*work, "waiting_gradient_bytes", "forward_kernels", "backward_kernels"), 0)
    operators = tuple(dataclasses.replace(o, **none) for o in description.operators)
    return dataclasses.replace(description, operators=operators, kernels=())


def work_of_kernels(description: osdp.ModelDescription) -> tuple[int, int]:
    """Flops and bytes of forward and backward of one sample."""
    ran = [
        k
        for o in description.operators
        for which in (o.forward_kernels, o.backward_kernels)
        for k in description.kernels[which]
    ]
    return (
        sum(k.count * (k.flops_per_sample + k.flops_fixed) for k in ran),
        sum(k.count * (k.bytes_per_sample + k.bytes_fixed) for k in ran),
    )


def test_a_models_questions_to_its_integers_are_answered() -> None:
    """Where a mask is all ones, transformers leaves it out; on the meta device it may hold padding."""
    model = bert(attn_implementation="sdpa", use_cache=False).eval()
    ones = {**padded(2), "attention_mask": torch.ones(2, TOKENS, dtype=torch.long)}
    without, masked = saved_bytes(model, ones), saved_bytes(model, padded(2))
    assert without < 0.99 * masked
    assert described_saved_bytes(osdp.describe(model, **ones), 2) == without
    assert described_saved_bytes(osdp.describe(model, **padded(2)), 2) == masked
    on_meta = {key: value.to("meta") for key, value in ones.items()}
    assert described_saved_bytes(osdp.describe(model, **on_meta), 2) == masked


@pytest.mark.parametrize(
    ("name", "blocks", "tied"),
    [
        ("gpt2", ["transformer.h.0", "transformer.h.1"], "transformer.wte"),
        ("opt", ["model.decoder.layers.0", "model.decoder.layers.1"], "model.decoder.embed_tokens"),
        ("llama", ["model.layers.0", "model.layers.1"], None),
        ("bert", ["bert.encoder.layer.0", "bert.encoder.layer.1"], "bert.embeddings.word_embeddings"),
        ("t5", [f"{part}.block.{i}" for part in ("encoder", "decoder") for i in range(2)], "shared"),
    ],
)
def test_layers_can_be_recomputed_and_tied_embeddings_are_one(
    name: str, blocks: list[str], tied: str | None
) -> None:
    _, description = described(name, "sdpa")
    assert [b.name for b in description.blocks] == blocks
    names = [a for o in description.operators for p in o.parameters for a in p.aliases]
    assert (tied is None) == (not names)
    if tied is not None:
        (operator,) = [o for o in description.operators if o.name == tied]
        assert operator.parameters[0].aliases and operator.calls >= 2


def test_flops_are_two_for_each_token_and_weight_and_those_of_attention() -> None:
    model, description = described("llama", "eager")
    products = sum(p.numel() for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n)
    attention = 2 * 2 * (2 * TOKENS * TOKENS * 32)  # layers x (scores, then values)
    flops = sum(o.flops_per_sample for o in description.operators)
    assert flops == 2 * TOKENS * products + attention


def test_linears_tables_and_conv1d_can_be_computed_in_slices() -> None:
    shapes = {o.name: o.split_shape for o in described("llama", "sdpa")[1].operators}
    assert shapes["model.layers.1.mlp.up_proj"] == (88, 32)
    assert shapes["lm_head"] == shapes["model.embed_tokens"] == (VOCABULARY, 32)
    operators = described("gpt2", "sdpa")[1].operators
    assert {o.kind for o in operators if o.parameters} == {"Embedding", "LayerNorm", "Conv1D"}
    (up,) = [o for o in operators if o.name.endswith("h.1.mlp.c_fc")]
    assert up.transposed and up.split_shape == (4 * 32, 32) and up.parameters[0].shape == (32, 4 * 32)
    (table,) = [o for o in operators if o.name.endswith("wte")]  # tied to the head
    assert table.split_shape == (VOCABULARY, 32) and table.look_ups == (table.name,)


def test_a_tokenizers_mapping_and_positional_ids_are_samples_too() -> None:
    (model, expected), sample = described("llama", "sdpa"), language(2)
    assert osdp.describe(model, **hf.BatchEncoding(sample)) == expected
    assert osdp.describe(model, sample["input_ids"], labels=sample["labels"]) == expected


def test_outputs_without_labels_and_as_tuples() -> None:
    model, ids = llama(use_cache=False), tokens(2)
    saved = described_saved_bytes(osdp.describe(model, ids), 2)
    assert saved == saved_bytes(model, {"input_ids": ids})
    assert saved == described_saved_bytes(osdp.describe(model, ids, return_dict=False), 2)


def test_recomputation_that_the_model_does_itself_is_seen() -> None:
    model, sample = llama(use_cache=False).train(), language(2)
    whole = described_saved_bytes(described("llama", "sdpa")[1], 2)
    for layer in model.model.layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=False)
    saved = described_saved_bytes(osdp.describe(model, **sample), 2)
    assert saved < 0.5 * whole and saved == saved_bytes(model, sample)


def test_a_sample_that_does_not_fit_names_the_module() -> None:
    with pytest.raises(osdp.DescribeError, match=r"Conv2d 'swin\.embeddings\.patch_embeddings\.projection'"):
        osdp.describe(swin(use_cache=False), pixel_values=torch.randn(2, 5, 32, 32))
    with pytest.raises(osdp.DescribeError, match=r"LlamaModel 'model' .*sample"):
        osdp.describe(llama(use_cache=False), labels=tokens(2))
