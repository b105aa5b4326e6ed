"""Drawing values anew after fully_shard: refused for a part of a parameter, right inside summon_full_params."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from harness import Member
from support.pair import Pair, naming
from support.workload import Workload, vectors
from torch import nn
from torch.nn import init
from torch.nn.init import kaiming_normal_, uniform_  # before anything is sharded

import osdp


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def reset_parameters(self) -> None:
        self.weight.data.uniform_(-1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 6), Own())


def in_place(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.weight.data.normal_(0, 0.02)
        module.bias.data.zero_()


def by_init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        init.xavier_uniform_(module.weight)


DRAWS = {
    "apply with nn.init": lambda m: m.apply(by_init),
    "apply with a tensor's method": lambda m: m.apply(in_place),
    "apply of a module inside": lambda m: m[0].apply(in_place),
    "a loop": lambda m: [by_init(module) for module in m.modules()],
    "a name imported before": lambda m: kaiming_normal_(m[0].weight),
    "another": lambda m: uniform_(m[0].weight.data),
    "orthogonal": lambda m: init.orthogonal_(m[1].weight[:2]),
    "eye": lambda m: init.eye_(m[1].weight),
    "reset_parameters of torch's": lambda m: m[0].reset_parameters(),
    "reset_parameters of the model's": lambda m: m[2].reset_parameters(),
}


def drawn(me: Member) -> None:
    pair = Pair(me, Workload(build, vectors(6, 6)), "FULL_SHARD")
    before = pair.sharded.state_dict()
    for name, draw in DRAWS.items():
        with (
            naming(name),
            pytest.raises(osdp.ShardingError, match=r"'\d\.weight' .*summon_full_params"),
        ):
            draw(pair.sharded)
    after = pair.sharded.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    for name, draw in DRAWS.items():  # and in full, seeded alike
        for model, context in ((pair.whole, contextlib.nullcontext()), (pair.sharded, None)):
            torch.manual_seed(5)
            with context or osdp.summon_full_params(pair.sharded), torch.no_grad():
                draw(model)
        with naming(name):
            pair.same_parameters()
    for model in (pair.whole, pair.sharded):  # right of any part
        model.apply(
            lambda m: isinstance(m, nn.Linear) and init.zeros_(m.bias) is init.constant_(m.weight, 0.1)
        )
        model.apply(lambda m: m.eval()).train()
    pair.train(steps=2)
    nn.init.xavier_uniform_(torch.empty(3, 3))


@pytest.mark.outcome(
    "`model.apply(init)`, `torch.nn.init` and `reset_parameters` on shards", osdp.ShardingError
)
def test_drawing_parts_anew(ranks):
    ranks(drawn, world=2)


def of_other_seeds(me: Member) -> None:
    model = nn.Sequential(nn.Linear(6, 4))
    osdp.fully_shard(model, osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 6)), "NO_SHARD"), me.group)
    for _ in range(4):  # past the forwards that compare anyway
        model(torch.randn(2, 6)).sum().backward()
    torch.manual_seed(me.rank)
    model[0].reset_parameters()
    with pytest.raises(osdp.ReplicaError, match=r"'0\.(weight|bias)'"):
        model(torch.randn(2, 6)).sum().backward()


@pytest.mark.outcome("NO_SHARD parameters initialised again with different seeds", osdp.ReplicaError)
def test_drawing_replicas_anew(ranks):
    ranks(of_other_seeds, world=2)


class Rooted(nn.Module):
    """Resets that need full parameters (a row by its index, a scale by shape), and a root that fills its parts' weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6, padding_idx=5)
        self.blocks = nn.ModuleList(build() for _ in range(2))
        self.norm = nn.LayerNorm(6)
        self.head = Shaped()

    def init_weights(self) -> None:
        for module in self.modules():
            if module is not self and hasattr(module, "reset_parameters"):
                module.reset_parameters()
        init.trunc_normal_(self.blocks[0][0].weight, std=self.blocks[0][0].weight.size(0) ** -0.5)
        self.head.weight.data.normal_(0, self.head.weight.shape[0] ** -0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Shaped(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 5)
        self.register_buffer("scale", torch.ones(6), persistent=False)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.uniform_(-1, 1).mul_(len(self.weight))
            self.weight[3].fill_(2.0)
            self.bias.copy_(torch.arange(5.0))
        if hasattr(self, "scale"):
            self.scale.fill_(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * self.scale)


def each_resets(model: nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


def by_apply(model: nn.Module) -> None:
    each_resets(model)
    model.apply(by_init)
    model.apply(in_place)


def early(function: Callable[..., object]) -> Callable[..., object]:
    """As it is where it was imported before anything was sharded."""
    return getattr(function, "__wrapped__", function)


def by_parameter(model: nn.Module) -> None:
    """A free loop: by shapes, of `.data` too."""
    each_resets(model)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            init.kaiming_normal_(parameter)
        elif "norm" not in name:
            early(uniform_)(parameter.data, -0.1, 0.1)
    early(init.xavier_uniform_)(model.blocks[0][0].weight)


AFTER = {
    "reset_parameters": each_resets,
    "a method of the model": lambda model: model.init_weights(),
    "apply": by_apply,
    "nn.init of each parameter": by_parameter,
}


def after_to_empty(me: Member, initialise: bool) -> None:
    for name, initialised in AFTER.items():
        whole = Rooted()
        torch.manual_seed(7)
        initialised(whole)
        following = torch.rand(3)
        with torch.device("meta"):
            model = Rooted()
        for block in model.blocks:
            osdp.fully_shard(block, process_group=me.group, initialise=initialise)
        osdp.fully_shard(model, process_group=me.group, initialise=initialise)
        model.to_empty(device="cpu").to_empty(device="cpu")
        torch.manual_seed(7)
        initialised(model)
        with naming(name):
            assert torch.equal(torch.rand(3), following)
            assert torch.equal(model.head.scale, whole.head.scale)
            for key, value in model.state_dict().items():
                assert torch.equal(
                    getattr(value, "full_tensor", lambda v=value: v)(), whole.state_dict()[key]
                ), key
            tokens = torch.arange(6).view(2, 3)
            assert torch.allclose(model(tokens), whole(tokens), rtol=1e-5, atol=1e-6)
            model(tokens).sum().backward()
            with pytest.raises(osdp.ShardingError, match="summon_full_params"):  # it has values now
                model.blocks[0][0].reset_parameters()
    model.zero_grad()
    model.to_empty(device="cpu")
    torch.manual_seed(me.rank)  # rank 0's values count
    model.head.reset_parameters()
    torch.manual_seed(0)
    whole.head.reset_parameters()
    assert torch.equal(model.head.state_dict()["weight"].full_tensor(), whole.head.weight)


def by_plan(mode: str) -> Callable[[nn.Module, Member], nn.Module]:
    ranks_of_line = 2 if mode == "HYBRID_SHARD" else None
    return lambda model, me: osdp.fully_shard(
        model, osdp.Plan.uniform(model, mode), me.group, ranks_per_host=ranks_of_line
    )


WAYS = {mode: by_plan(mode) for mode in ("FULL_SHARD", "NO_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD")}
WAYS["class"] = lambda model, me: osdp.FullyShardedDataParallel(
    model, me.group, auto_wrap_policy={nn.Sequential}
)


def other_ways(me: Member, way: str) -> None:
    """Drawn twice: the emptied model is drawn anew after training, too."""
    with torch.device("meta"):
        model = Rooted()
    model, whole = WAYS[way](model, me), Rooted()
    tokens = torch.arange(6).view(2, 3)
    for name, initialised in AFTER.items():
        if way == "class" and name in ("reset_parameters", "nn.init of each parameter"):
            continue  # modules() has the wrappers too, which forward reset_parameters
        for each in (model.to_empty(device="cpu"), whole):
            torch.manual_seed(7)
            initialised(each)
        with naming(name):
            wanted = whole.state_dict()
            for key, value in model.state_dict().items():
                assert torch.equal(value, wanted[key]), key
            if way != "NO_SHARD":
                with pytest.raises(osdp.ShardingError, match="imported before fully_shard"):
                    early(kaiming_normal_)(model.blocks[0][0].weight)
            assert torch.allclose(model(tokens), whole(tokens), rtol=1e-5, atol=1e-6)
            model(tokens).sum().backward()
        model.zero_grad()


@pytest.mark.outcome(
    "after `to_empty`: `torch.nn.init` of each parameter in a loop; a plan, HYBRID_SHARD, the class", "equal"
)
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_shard_before_to_empty(ranks, way):
    ranks(other_ways, way, world=4 if way == "HYBRID_SHARD" else 2)


class Rotary(nn.Module):
    """A buffer and a parameter that no reset_parameters fills."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("table", torch.ones(6, dtype=dtype), persistent=False)

    def init_weights(self) -> None:
        self.linear.reset_parameters()
        init.normal_(self.scale)
        self.table = torch.arange(6.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.table * self.scale


class PartlyReset(Rotary):
    """As CLIP's: what initialises the module leaves a parameter to its constructor."""

    def reset_parameters(self) -> None:
        self.table.fill_(1.0)


def buffers_that_the_script_fills(me: Member) -> None:
    with torch.device("meta"):
        model, counts = Rotary(), Rotary(torch.long)
    with pytest.raises(osdp.ShardingError, match="buffer 'table'"):
        osdp.fully_shard(counts, process_group=me.group, initialise=False)  # it could not be NaN until then
    with pytest.raises(osdp.ShardingError, match="buffer 'table'"):
        osdp.fully_shard(counts, process_group=me.group)
    with pytest.raises(osdp.ShardingError, match="parameter 'scale'"):
        osdp.fully_shard(model, osdp.Plan.uniform(model, "FULL_SHARD"), me.group)
    for kind, told in (
        (Rotary, {"initialise": False}),
        (Rotary, {}),  # what has a reset is initialised, with a warning about the rest
        (PartlyReset, {}),
    ):
        with torch.device("meta"):
            model = kind()
        osdp.fully_shard(model.linear, process_group=me.group, **told)
        with contextlib.nullcontext() if told else pytest.warns(UserWarning, match="'scale'"):
            osdp.fully_shard(model, process_group=me.group, **told)
        assert model.scale.isnan().all() and (kind is PartlyReset or model.table.isnan().all())
        whole = kind()
        for each in (model.to_empty(device="cpu"), whole):
            torch.manual_seed(3)
            each.init_weights()
        x = torch.randn(2, 6)
        assert torch.allclose(model(x), whole(x), rtol=1e-5, atol=1e-6)


def test_buffers_that_only_the_script_can_fill(ranks):
    ranks(buffers_that_the_script_fills, world=2)


class Fails(nn.Linear):
    def reset_parameters(self) -> None:
        super().reset_parameters()
        if getattr(self, "fails", False):
            raise ValueError("no such luck")


def fails_on_one_rank(me: Member) -> None:
    with torch.device("meta"):
        model = nn.Sequential(Fails(6, 6))
    osdp.fully_shard(model, process_group=me.group)
    model.to_empty(device="cpu")
    model[0].fails = me.rank == 1
    with pytest.raises(Exception, match="no such luck"):
        model[0].reset_parameters()
    model[0].fails = False
    model[0].reset_parameters()
    model(torch.randn(2, 6)).sum().backward()


def test_a_reset_that_fails_on_one_rank(ranks):
    ranks(fails_on_one_rank, world=2)


@pytest.mark.outcome("FSDP2's meta device: `to_empty`, then `reset_parameters` or `init_weights`", "equal")
@pytest.mark.parametrize("initialise", [True, False])
def test_initialising_after_to_empty(ranks, initialise):
    ranks(after_to_empty, initialise, world=2)
