"""Models built on the meta device: initialised shard by shard, to the same values on any ranks under any plan."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.descriptions import describe_once
from support.pair import SEED, adamw, close, naming
from support.worlds import worlds
from torch import nn

import osdp
from osdp.sharding.sharded_model import runtime_of


class Mixed(nn.Module):
    """Tied weights, buffers of both kinds, an LSTM's list of weights, an attention whose reset reaches below it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.scaled = Scaled()
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.recurrent(x)[0]
        return self.head(self.scaled(self.norm(x.transpose(1, 2)).transpose(1, 2)))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(8))
        self.register_buffer("table", torch.empty(8), persistent=False)
        self.register_buffer("count", torch.empty((), dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.scale)
        self.table.copy_(torch.arange(8) / 8)
        self.count.fill_(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.table


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def plan_for(model: nn.Module, mode: str) -> osdp.Plan:
    described = describe_once(model, torch.zeros(2, 3, dtype=torch.long))
    return (
        plans.mixture(described, 2) if mode == "mixture" else plans.apart(osdp.Plan.uniform(described, mode))
    )


def initialised(me: Member, mode: str, seed: int = 5, **options: Any) -> nn.Module:
    model = on_meta(Mixed)
    plan = plan_for(model, mode)
    torch.manual_seed(seed + me.rank)  # rank 0's values count
    return osdp.fully_shard(model, plan, process_group=me.group, **options)


def values(me: Member, mode: str) -> dict[str, torch.Tensor]:
    model = initialised(me, mode)
    assert not any(t.is_meta for t in itertools.chain(model.parameters(), model.buffers()))
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.scaled.table, torch.arange(8) / 8)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = adamw(model.parameters())
    for _ in range(2):
        model(torch.randint(11, (2, 3))).square().mean().backward()
        assert all(p.grad is not None for p in model.parameters() if p.numel())
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(state["head.weight"], model.state_dict()["head.weight"])
    return state


def test_values_depend_on_neither_plan_nor_ranks(ranks):
    wanted = ranks(values, "NO_SHARD", world=1)[0]
    assert wanted["norm.running_var"].eq(1).all() and wanted["scaled.count"] == 3
    assert not any(v.isnan().any() for v in wanted.values())
    for world, mode in [(1, "FULL_SHARD"), (2, "NO_SHARD"), (2, "FULL_SHARD"), (3, "mixture")]:
        for rank, state in enumerate(ranks(values, mode, world=world)):
            with naming(f"{mode}, rank {rank} of {world}"):
                assert list(state) == list(wanted)
                for name, value in wanted.items():
                    assert torch.equal(state[name], value), name


def constructed(me: Member) -> None:
    """Where constructors draw what resets draw, in their order, the values are those of ordinary construction."""
    torch.manual_seed(11)
    whole = blocks.Blocks(2)
    model = on_meta(lambda: blocks.Blocks(2))
    plan = plan_for(model, "FULL_SHARD")
    torch.manual_seed(11)
    sharded = osdp.fully_shard(model, plan, process_group=me.group)
    for name, value in sharded.state_dict().items():
        assert torch.equal(value, whole.state_dict()[name]), name


def test_values_are_those_of_ordinary_construction(ranks):
    ranks(constructed, world=2)


def attention(me: Member) -> None:
    """Its reset writes to its own weights and to its output layer's bias: together they are initialised right."""
    model = initialised(me, "FULL_SHARD")
    state = model.state_dict()
    assert state["attention.in_proj_bias"].eq(0).all() and state["attention.out_proj.bias"].eq(0).all()
    bound = (6.0 / (8 + 24)) ** 0.5  # xavier of the whole [24, 8], not of a shard
    assert bound * 0.9 < state["attention.in_proj_weight"].abs().max() <= bound


def test_resets_that_reach_below(ranks):
    ranks(attention, world=2)


class Container(nn.Module):
    """Initialises its layers itself, through .data, as GPT-like models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for i, layer in enumerate(self.layers):
            layer.weight.data.fill_(i + 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def containers(me: Member) -> None:
    model = on_meta(Container)
    osdp.fully_shard(model, osdp.Plan.uniform(osdp.describe(model, torch.zeros(2, 4))), me.group)
    state = model.state_dict()
    assert state["layers.0.weight"].eq(1).all() and state["layers.1.weight"].eq(2).all()


def test_containers_that_initialise_their_layers(ranks):
    ranks(containers, world=2)


def by_function(me: Member) -> None:
    seen: list[str] = []

    def init(module: nn.Module) -> None:
        seen.append(type(module).__name__)
        for parameter in module.parameters(recurse=False):
            parameter.data.fill_(0.25)
        for buffer in module.buffers(recurse=False):
            buffer.fill_(2)

    model = initialised(me, "FULL_SHARD", param_init_fn=init)
    state = model.state_dict()
    assert all(
        v.eq(2 if "norm.r" in n or "count" in n or "num" in n else 0.25).all() for n, v in state.items()
    )
    assert "Mixed" not in seen and sorted(set(seen)) == sorted(
        {
            "Embedding",
            "MultiheadAttention",
            "NonDynamicallyQuantizableLinear",
            "LSTM",
            "BatchNorm1d",
            "Scaled",
            "Linear",
        }
    )


def test_an_initialisation_function(ranks):
    ranks(by_function, world=2)


class NoReset(nn.Module):
    def __init__(self, fails: str = "") -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.bare = Bare() if not fails else Faulty(fails)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bare(self.first(x))


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("mask", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.mask


class Faulty(Bare):
    def __init__(self, fails: str) -> None:
        super().__init__()
        self.fails = fails

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        if self.fails != "forgets":
            self.mask.fill_(1.0)
        if self.fails == "raises":
            raise ValueError("no such luck")
        if self.fails == "reshapes":
            self.weight = nn.Parameter(torch.ones(5))
        if self.fails == "raises on rank 1" and torch.distributed.get_rank() == 1:
            raise ValueError("no such luck")


REFUSED = {
    "": (r"'bare' \(Bare\) has parameter 'weight' on the meta device", {}),
    "forgets": (r"Faulty did not write bare\.mask", {}),
    "raises": (r"reset_parameters of module 'bare' \(Faulty\) failed: ValueError: no such luck", {}),
    "raises on rank 1": (r"no such luck", {}),
    "reshapes": (r"bare\.weight changed its shape", {}),
    "by function": (r"did not write first\.weight", {"param_init_fn": lambda module: None}),
}


def refuse(me: Member, fails: str) -> None:
    match, options = REFUSED[fails]
    model = on_meta(lambda: NoReset(fails))
    plan = osdp.Plan.uniform(osdp.describe(model, torch.zeros(2, 4)))
    before = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with pytest.raises(osdp.ShardingError, match=match):
        osdp.fully_shard(model, plan, process_group=me.group, **options)
    after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert list(before) == list(after)
    assert all(after[name] is tensor and tensor.is_meta for name, tensor in before.items())
    assert not model._forward_pre_hooks and not model._forward_hooks

    def ones(module: nn.Module) -> None:
        for tensor in itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False)):
            tensor.fill_(1.0)

    osdp.fully_shard(model, plan, process_group=me.group, param_init_fn=ones)
    model(torch.ones(2, 4)).sum().backward()
    assert all(v.eq(1).all() for v in model.state_dict().values())


@pytest.mark.parametrize("fails", REFUSED)
def test_what_cannot_be_initialised_is_refused_with_nothing_changed(ranks, fails):
    ranks(refuse, fails, world=2)


def received(me: Member, mode: str) -> None:
    """Rank 0 has the values, as of a pretrained model, the others only shapes."""
    torch.manual_seed(SEED)
    whole = Mixed()
    model = Mixed() if me.rank == 0 else on_meta(Mixed)
    if me.rank == 0:
        model.load_state_dict(whole.state_dict())
    first = dict(model.named_parameters())
    osdp.fully_shard(model, plan_for(on_meta(Mixed), mode), process_group=me.group)
    for name, value in model.state_dict().items():
        assert torch.equal(value, whole.state_dict()[name]), name
    assert torch.equal(model.scaled.table, whole.scaled.table)
    assert me.rank != 0 or all(first[name] is p for name, p in model.named_parameters())
    x = torch.randint(11, (2, 3))
    close(model.eval()(x), whole.eval()(x), 1e-5, "output")
    model.train()(x).sum().backward()


@pytest.mark.parametrize("mode", ["FULL_SHARD", "mixture"])
def test_ranks_without_values_receive_those_of_rank_0(ranks, mode):
    ranks(received, mode, world=3)


def rank_0_lacks_values(me: Member) -> None:
    model = on_meta(Mixed) if me.rank == 0 else Mixed()
    plan = plan_for(model, "FULL_SHARD")
    with pytest.raises(osdp.DisagreementError, match="meta device, but rank 1"):
        osdp.fully_shard(model, plan, process_group=me.group)
    assert all(p.is_meta == (me.rank == 0) for p in model.parameters())


def test_rank_0_must_have_what_others_have(ranks):
    ranks(rank_0_lacks_values, world=2)


def partly(me: Member) -> None:
    """Only one layer is on the meta device; the rest keeps rank 0's values."""
    torch.manual_seed(me.rank)
    model = nn.Sequential(nn.Linear(4, 6), on_meta(lambda: nn.Linear(6, 4)))
    kept = me.everywhere(model[0].weight.detach().clone())[0]
    osdp.fully_shard(model, osdp.Plan.uniform(osdp.describe(model, torch.zeros(2, 4))), me.group)
    state = model.state_dict()
    assert torch.equal(state["0.weight"], kept)
    assert 0 < state["1.weight"].abs().max() <= 6**-0.5
    for other in me.everywhere(state["1.weight"]):
        assert torch.equal(other, state["1.weight"])


def test_a_model_that_is_partly_on_the_meta_device(ranks):
    ranks(partly, world=2)


def written(me: Member, directory: Path) -> None:
    model = initialised(me, "FULL_SHARD", seed=1)
    optimizer = adamw(model.parameters())
    model(torch.ones(2, 3, dtype=torch.long)).square().mean().backward()
    optimizer.step()
    osdp.save(model, optimizer, directory, process_group=me.group)
    if me.rank == 0:
        torch.save(model.state_dict(), directory / "expected.pt")
    else:
        model.state_dict()


def loaded(me: Member, directory: Path) -> None:
    model = initialised(me, "mixture", initialise=False)
    assert all(p.isnan().all() for n, p in model.named_parameters() if not n.startswith("scaled"))
    assert torch.equal(model.scaled.table, torch.arange(8) / 8)  # no checkpoint has it
    optimizer = adamw(model.parameters())
    osdp.load(model, optimizer, directory, process_group=me.group)
    found = model.state_dict()
    for name, value in torch.load(directory / "expected.pt").items():
        assert torch.equal(found[name], value), name
    model(torch.ones(2, 3, dtype=torch.long)).square().mean().backward()
    optimizer.step()


def test_a_checkpoint_fills_a_model_that_was_not_initialised(ranks, tmp_path):
    ranks(written, tmp_path / "step", world=2)
    ranks(loaded, tmp_path / "step", world=3)


def peak(me: Member) -> tuple[int, int]:
    """Live bytes at the highest point of initialising, over the model's."""
    from osdp import _C

    model = on_meta(lambda: nn.Sequential(*(nn.Linear(256, 256) for _ in range(32))))
    plan = osdp.Plan.uniform(osdp.describe(model, torch.zeros(2, 256)))
    full = sum(p.numel() * p.element_size() for p in model.parameters())
    _C.memory_meter_install()
    before = _C.memory_live_bytes()
    _C.memory_reset_peak()
    from osdp.sharding import fully_shard

    measured: list[int] = []
    rest, fully_shard._measure_rest = (
        fully_shard._measure_rest,
        lambda *_: measured.append(_C.memory_peak_bytes()),
    )
    try:
        osdp.fully_shard(model, plan, process_group=me.group)
    finally:
        fully_shard._measure_rest = rest
    assert runtime_of(model).gathered_bytes() == 0
    return measured[0] - before, full


@pytest.mark.parametrize("world", worlds(4, more=(2,)))
def test_no_rank_ever_has_the_whole_model(ranks, world):
    for most, full in ranks(peak, world=world):
        assert full / world <= most < full / world + 3.5 * full / 32
