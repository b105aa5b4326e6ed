"""Models of the transformers library under four plans each: losses, gradients and weights of one process."""

from __future__ import annotations

import families
import pytest
import torch
from family_training import SAMPLES, SEED, Prepare, part, plans, train
from harness import Member
from support.pair import close, naming
from torch import nn

import osdp


def trained(
    me: Member, name: str, plan: osdp.Plan, prepare: Prepare = nn.Module.train, steps: int = 3
) -> tuple[nn.Module, nn.Module]:
    """Both models after some steps, compared in each."""
    whole, sharded = (prepare(families.model(name, seed)) for seed in (SEED, SEED + me.rank))
    sharded = osdp.fully_shard(sharded, plan, process_group=me.group)
    train(me, name, whole, sharded, steps)
    tolerance = families.FAMILIES[name].tolerance
    got, full = sharded.state_dict(), whole.state_dict()
    assert list(got) == list(full)
    for key, value in full.items():
        close(got[key], value, 1e-3 if tolerance > 1e-8 else 1e-7, key)  # AdamW divides by gradients near 0
    return whole, sharded


def train_under_each_plan(me: Member, name: str, prepare: Prepare = nn.Module.train) -> None:
    for what, plan in plans(name, me.world, prepare).items():
        with naming(what):
            trained(me, name, plan, prepare)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_training_is_that_of_one_process(ranks, name):
    ranks(train_under_each_plan, name, world=2, timeout_s=240)


def with_checkpoints(model: nn.Module) -> nn.Module:
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def with_reentrant_checkpoints(model: nn.Module) -> nn.Module:
    model.gradient_checkpointing_enable({"use_reentrant": True})
    return model


@pytest.mark.parametrize("prepare", [with_checkpoints, with_reentrant_checkpoints])
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_their_gradient_checkpointing(ranks, name, prepare):
    ranks(train_under_each_plan, name, prepare, world=2, timeout_s=240)


def with_adapters(model: nn.Module) -> nn.Module:
    """LoRA on what is frozen otherwise."""
    import peft

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0)
    adapted = peft.get_peft_model(model, config)
    for name, p in adapted.named_parameters():
        if "lora_B" in name:  # zeros at first, so that gradients of the other matrix would be too
            nn.init.normal_(p, std=0.02)
    return adapted.double()


def with_adapters_and_checkpoints(model: nn.Module) -> nn.Module:
    """As scripts that fine-tune do it: the frozen embedding's output is made to need a gradient."""
    model.enable_input_require_grads()
    return with_adapters(with_reentrant_checkpoints(model))


@pytest.mark.parametrize("prepare", [with_adapters, with_adapters_and_checkpoints])
def test_adapters_on_a_frozen_model(ranks, prepare):
    pytest.importorskip("peft")
    ranks(train_under_each_plan, "llama", prepare, world=2, timeout_s=240)


def generate(me: Member, name: str) -> None:
    """Greedy words after training, with a cache of keys and values, and again training after them."""
    for what, plan in plans(name, me.world).items():
        with naming(what):
            whole, sharded = trained(me, name, plan, steps=1)
            prompt = families.batch(name, 7, 2)["input_ids"]
            words = []
            for model in (whole, sharded):
                model.eval()
                words.append(model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0))
                model.train()
            assert torch.equal(*words), words
            batch = families.batch(name, 8, SAMPLES * me.world)
            wanted, loss = whole(**batch).loss, sharded(**part(me, batch)).loss
            close(me.mean(loss), wanted, 1e-5, "loss afterwards")
            loss.backward()


@pytest.mark.parametrize("name", [n for n, f in families.FAMILIES.items() if f.generates])
def test_generate(ranks, name):
    ranks(generate, name, world=2, timeout_s=240)


def generate_several(me: Member, name: str) -> None:
    """Ranks end at different lengths: those that are done go on calling until all are."""
    for what, plan in plans(name, me.world).items():
        with naming(what):
            whole, sharded = trained(me, name, plan, steps=1)
            prompt = families.batch(name, 7 + me.rank, 2)["input_ids"]
            length = 3 + 4 * me.rank
            words = []
            for model in (whole, sharded):
                model.eval()
                asked = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False}
                words.append(model.generate(prompt, **asked, pad_token_id=0))
            assert torch.equal(*words), words


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_ranks_generate_different_lengths(ranks, name):
    ranks(generate_several, name, world=2, timeout_s=240)
