"""Full state dicts under the unwrapped names, and the map from a rank's pieces to the full tensors."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from harness import Member
from support import blocks, plans
from support.descriptions import describe_once
from support.pair import Pair, close, cut, naming
from support.workload import Workload
from support.worlds import worlds
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import StateDictType
from torch.distributed.tensor import DTensor

import osdp
from osdp.sharding.sharded_model import runtime_of

FSDP = osdp.FullyShardedDataParallel


def load_into_every_placement(me: Member) -> None:
    """A full state dict from one process goes into any plan, and comes out of it the same."""
    source = blocks.workload().model(99, torch.float64).state_dict()
    example = blocks.workload().data(0, 2, torch.float64)[0]
    described = describe_once(blocks.workload().model(0, torch.float64), *example)
    for name, plan in plans.everything(described).items():
        with naming(name):
            pair = Pair(me, blocks.workload(), plan)
            for model, _ in pair.both:
                result = model.load_state_dict({key: value.clone() for key, value in source.items()})
                assert not result.missing_keys and not result.unexpected_keys
            for key, value in pair.sharded.state_dict().items():
                assert torch.equal(value, source[key]), key
            pair.train(steps=2)
            # Taken between backward and step, and after: it never shows an old value.
            pair.backward(pair.data(5))
            pair.same_parameters()
            pair.update()
            pair.same_parameters()


@pytest.mark.parametrize("world", [1, 3])
def test_a_full_state_dict_goes_in_and_out(ranks, world):
    ranks(load_into_every_placement, world=world)


class Counts(nn.Linear):
    """Has a buffer, and extra state that shares memory with another one."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for buffer in self.buffers():  # none yet in the constructor
            buffer.zero_()

    def get_extra_state(self):
        return {"scratch": [self.scratch], "seen": "calls"}

    def set_extra_state(self, state):
        self.scratch.copy_(state["scratch"][0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.calls += 1
            self.scratch += 1
        return super().forward(x)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Counts(), nn.Linear(4, 4))
        self.body[3].weight = self.body[0].weight
        self.body[2].bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * self.scale


WAYS = ("NO_SHARD", "SHARD_GRAD_OP", "mixed", "class")


def whole_model(me: Member, way: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = Whole()
    if way == "class":
        return FSDP(model, me.group)
    plan = osdp.Plan.uniform(describe_once(model, torch.zeros(2, 4)), way if way != "mixed" else "FULL_SHARD")
    if way == "mixed":
        plan = plan.replace({"body.0": osdp.Choice("NO_SHARD")})
    return osdp.fully_shard(model, plans.apart(plan), me.group)


def train(model: nn.Module, steps: int = 1) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    for _ in range(steps):
        model(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.enable_grad()
def train_once(model: nn.Module) -> None:
    train(model)


def tensors(state: dict) -> dict[str, torch.Tensor]:
    found = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    found |= {name: v["scratch"][0] for name, v in state.items() if name.endswith("extra_state")}
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in found.items()
    }


def same(got: dict, wanted: dict) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(got[name], value), name


def state_is_a_snapshot(me: Member) -> None:
    """In every mode: training on changes no state dict that was taken before, and writes into one reach nothing."""
    for way in WAYS:
        with naming(way):
            model = whole_model(me, way)
            train(model)  # the class makes its plan
            part = (model.module if way == "class" else model).body
            taken = [
                model.state_dict(),
                model.state_dict(keep_vars=True),
                part.state_dict(),
                part[2].state_dict(),
                get_model_state_dict(model),
            ]
            grads = {name: isinstance(v, nn.Parameter) and v.requires_grad for name, v in taken[1].items()}
            assert grads == {name: p.requires_grad for name, p in whole_names(model).items()} | {
                name: False for name in taken[1] if name not in whole_names(model)
            }
            assert not any(value.requires_grad for value in tensors(taken[0]).values())
            for state in taken[:2]:
                assert state["body.0.weight"] is state["body.3.weight"]
            before = [{name: v.detach().clone() for name, v in tensors(state).items()} for state in taken]
            train(model, 3)
            for state, wanted in zip(taken, before, strict=True):
                same(tensors(state), wanted)
            wanted = tensors(model.state_dict())
            for state in taken:
                for value in tensors(state).values():
                    with torch.no_grad():
                        value.fill_(9)
            same(tensors(model.state_dict()), wanted)
            model.load_state_dict(taken[0])
            same(tensors(model.state_dict()), tensors(taken[0]))


def whole_names(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters(remove_duplicate=False))


@pytest.mark.outcome("a full state dict, after more steps or written into; in every mode", "equal")
def test_a_full_state_dict_is_a_snapshot_in_every_mode(ranks):
    ranks(state_is_a_snapshot, world=2)


def told(recorded: list[warnings.WarningMessage]) -> int:
    return sum("changes the state dict alone" in str(w.message) for w in recorded)


def writes_are_told(me: Member) -> None:
    """Once for each model, by its next state dict or one of its first forwards; and not where the state dict is loaded."""
    for way in WAYS:
        with naming(way):
            model, average, loaded, filled = (whole_model(me, way) for _ in range(4))
            train(model)
            for each in (average, loaded):
                train(each)
            with warnings.catch_warnings(record=True) as recorded, torch.no_grad():
                warnings.simplefilter("always")
                counts = []
                for _ in range(3):  # timm's ModelEmaV2
                    for e, m in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                        if isinstance(e, torch.Tensor):
                            e.copy_(0.9 * e + 0.1 * m)
                    train_once(model)
                    counts.append(told(recorded))
                assert counts == [0, 1, 1]
                for value in (edited := loaded.state_dict()).values():
                    value.mul_(2) if isinstance(value, torch.Tensor) else None
                loaded.load_state_dict(edited)
                for each in (loaded, model):
                    train_once(each), each.state_dict()
                assert told(recorded) == 1
                for name, value in model.state_dict().items():  # a file's values, by hand
                    if isinstance(value, torch.Tensor):
                        filled.state_dict()[name].copy_(value)
                        break
                train_once(filled)
                assert told(recorded) == 2
                assert f"rank {me.rank}: 'scale' of a state dict of the sharded" in str(recorded[-1].message)


@pytest.mark.outcome(
    "values written into a full state dict in place: timm's ModelEmaV2, YOLO's EMA, a file's values by hand",
    "a warning: its entries are copies. Call `load_state_dict`, or write to `model.parameters()`",
)
def test_writes_into_a_snapshot_are_told(ranks):
    ranks(writes_are_told, world=2)


def rows_are_live(me: Member) -> None:
    """A sharded state dict shares memory with the model, in every mode, as FSDP2's does."""
    for way in (*WAYS, "blocks"):
        with naming(way):
            if way == "blocks":
                torch.manual_seed(0)
                mesh = DeviceMesh.from_group(me.group, "cpu")
                model = osdp.fully_shard(Whole(), mesh=mesh)
            else:
                model = whole_model(me, way)
                FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
            train(model)
            state = model.state_dict()
            train(model, 2)
            same(tensors(state), tensors(model.state_dict()))
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    (value.to_local() if isinstance(value, DTensor) else value).fill_(len(name))
            for name, value in tensors(model.state_dict()).items():
                if value.is_floating_point() and "extra" not in name:
                    # Tied: the name that was written last.
                    assert bool((value == len("body.3.weight" if name == "body.0.weight" else name)).all()), (
                        name
                    )


def test_a_sharded_state_dict_shares_the_models_memory_in_every_mode(ranks):
    ranks(rows_are_live, world=2)


def read_in_place(me: Member, directory: Path) -> None:
    """torch.distributed.checkpoint's load into model.state_dict(): a full one has to be loaded afterwards, a sharded one
    is the model's."""
    for way in ("NO_SHARD", "mixed", "class"):
        for kind in (StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT):
            with naming(f"{way} {kind}"):
                saved, model = whole_model(me, way), whole_model(me, way, 1)
                place = directory / f"{way} {kind.name}"
                for each in (saved, model):
                    train(each)
                    FSDP.set_state_dict_type(each, kind)
                wanted, before = tensors(saved.state_dict()), tensors(model.state_dict())
                dcp.save(saved.state_dict(), checkpoint_id=place, process_group=me.group)
                state = model.state_dict()
                dcp.load(state, checkpoint_id=place, process_group=me.group)
                full = kind is StateDictType.FULL_STATE_DICT
                now = tensors(model.state_dict())
                for name in (n for n in wanted if "extra" not in n):
                    assert torch.equal(now[name], (before if full else wanted)[name]), name
                model.load_state_dict(state)
                same(tensors(model.state_dict()), wanted)


@pytest.mark.outcome(
    "`dcp.load(model.state_dict())` without `load_state_dict`: a full one reaches no parameter", "equal"
)
def test_reading_a_checkpoint_into_a_state_dict(ranks, tmp_path):
    ranks(read_in_place, tmp_path, world=2)


def assigned(me: Member) -> None:
    """load_state_dict(assign=True) copies: parameters and buffers stay the objects that they are."""
    for way in (*WAYS, "meta", "swap"):
        with naming(way):
            if way == "meta":
                with torch.device("meta"):
                    model = Whole()
                described = osdp.describe(model, torch.zeros(2, 4, device="meta"))
                plan = osdp.Plan.uniform(described, "FULL_SHARD")
                osdp.fully_shard(model, plan, me.group, initialise=False)
            else:
                model = whole_model(me, way if way != "swap" else "mixed")
            held = [*model.parameters(), *model.buffers()]
            state = {
                name: v * 2
                for name, v in whole_model(me, "NO_SHARD", 5).state_dict().items()
                if "extra" not in name
            }
            state["body.2._extra_state"] = {"scratch": [torch.ones(2)]}
            torch.__future__.set_swap_module_params_on_conversion(way == "swap")
            try:
                assert model.load_state_dict(state, assign=way != "swap") == ([], [])
            finally:
                torch.__future__.set_swap_module_params_on_conversion(False)
            assert all(a is b for a, b in zip(held, [*model.parameters(), *model.buffers()], strict=True))
            same(tensors(model.state_dict()), tensors(state))
            assert not next(p for n, p in model.named_parameters() if n == "body.2.bias").requires_grad
            train(model)
            wanted = tensors(model.state_dict())
            for name in ("scale", "body.1.running_mean"):
                other = {**state, name: state[name].double()}
                with pytest.raises(osdp.ShardingError, match=f"'{name}' is torch.float64"):
                    model.load_state_dict(other, assign=True)
                same(tensors(model.state_dict()), wanted)
            model.load_state_dict(other)
            same(tensors(model.state_dict()), tensors(state))


@pytest.mark.outcome("`load_state_dict(assign=True)`", "equal")
@pytest.mark.outcome("`load_state_dict(assign=True)` of tensors in another dtype", osdp.ShardingError)
def test_assigning_copies(ranks):
    ranks(assigned, world=2)


def tied_state(me: Member) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False))
    body[1].weight = body[0].weight
    whole = nn.Sequential(body)
    plan = osdp.Plan.uniform(describe_once(whole, torch.zeros(2, 3, dtype=torch.long)), "FULL_SHARD")
    sharded = osdp.fully_shard(whole, plan, process_group=me.group)
    state = sharded.state_dict(prefix="model.")
    assert list(state) == ["model.0.0.weight", "model.0.1.weight"]
    assert state["model.0.0.weight"].shape == (8, 4)
    assert state["model.0.0.weight"] is state["model.0.1.weight"]


def test_the_names_of_one_parameter_have_one_tensor(ranks):
    ranks(tied_state, world=2)


def bad_state(me: Member) -> None:
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    state = pair.sharded.state_dict()
    wrong = {**state, "head.weight": torch.zeros(3, 3, dtype=torch.float64)}
    with pytest.raises(RuntimeError, match=r"head\.weight"):
        pair.sharded.load_state_dict(wrong)
    del state["norm.weight"]
    with pytest.raises(RuntimeError, match=r"norm\.weight"):
        pair.sharded.load_state_dict(state)
    result = pair.sharded.load_state_dict({**state, "extra": torch.zeros(1)}, strict=False)
    assert result.missing_keys == ["norm.weight"]
    assert result.unexpected_keys == ["extra"]
    pair.same_parameters()
    pair.train(steps=1)


def test_a_state_dict_that_does_not_fit_is_refused_as_torch_does(ranks):
    ranks(bad_state, world=2)


def pieces_tile_every_parameter(me: Member) -> None:
    example = blocks.workload().data(0, 2, torch.float64)[0]
    described = describe_once(blocks.workload().model(0, torch.float64), *example)
    for plan_name, plan in plans.everything(described).items():
        with naming(plan_name):
            pair = Pair(me, blocks.workload(), plan)
            runtime = runtime_of(pair.sharded)
            whole = dict(pair.whole.named_parameters())
            assert set(runtime.names()) == set(whole)
            for name, parameter in pair.sharded.named_parameters():
                assert tuple(runtime.full_shape(name)) == tuple(whole[name].shape)
                mine = torch.zeros_like(whole[name])
                once = torch.zeros_like(whole[name])
                for piece in runtime.pieces(name):
                    close(piece.view(parameter), cut(piece, whole[name]), 0.0, name)
                    cut(piece, mine).add_(1)
                    if not piece.replicated or me.rank == 0:
                        cut(piece, once).add_(1)
                assert int(mine.sum()) == parameter.numel(), f"{name}: elements outside every piece"
                total = me.mean(once) * me.world
                assert torch.equal(total.round(), torch.ones_like(total)), f"{name}: not tiled once"


@pytest.mark.parametrize("world", worlds(4, more=(3,)))
def test_the_pieces_of_all_ranks_tile_every_parameter_once(ranks, world):
    ranks(pieces_tile_every_parameter, world=world)


class WithBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("kept", torch.randn(3))
        self.register_buffer("passing", torch.randn(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) + self.kept.sum() + self.passing.sum()


def buffers(me: Member) -> None:
    """Wrapping broadcasts rank 0's buffers; they stay local afterwards; only persistent ones are saved."""
    workload = Workload(WithBuffers, lambda s: ((torch.randn(s, 4),), torch.randn(s, 4)))
    first = workload.model(0, torch.float64)
    model = workload.model(me.rank, torch.float64)
    described = describe_once(model, torch.randn(3, 4, dtype=torch.float64))
    osdp.fully_shard(model, osdp.Plan.uniform(described, "FULL_SHARD"), process_group=me.group)
    for (name, got), (_, wanted) in zip(model.named_buffers(), first.named_buffers(), strict=True):
        assert torch.equal(got, wanted), name
    torch.manual_seed(me.rank)
    model(torch.randn(6, 4, dtype=torch.float64) + me.rank).sum().backward()
    means = me.everywhere(model.norm.running_mean)
    assert not torch.equal(means[0], means[1])
    state = model.state_dict()
    assert list(state) == list(first.state_dict())
    assert torch.equal(state["norm.running_mean"], model.norm.running_mean)
    assert int(state["norm.num_batches_tracked"]) == 1


def test_buffers_are_broadcast_once_and_then_local(ranks):
    ranks(buffers, world=2)
