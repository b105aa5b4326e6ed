"""Modules with state-dict code of their own see values, not a rank's rows, in the order in which torch runs it."""

from __future__ import annotations

import copy
import io
import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import Member
from harness.doomed import run_doomed
from support import plans
from support.descriptions import describe_once
from support.pair import close, held, naming
from torch import Tensor, nn
from torch.distributed.fsdp import FullStateDictConfig, ShardedStateDictConfig, StateDictType
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrize

import osdp

FSDP = osdp.FullyShardedDataParallel
WAYS = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "class", "blocks")


def shard(me: Member, model: nn.Module, way: str) -> nn.Module:
    if way == "class":
        return FSDP(model, me.group)
    if way == "blocks":  # as FSDP2's: sharded state dicts
        return osdp.fully_shard(model, mesh=dist.device_mesh.DeviceMesh.from_group(me.group, "cpu"))
    plan = osdp.Plan.uniform(describe_once(model, torch.zeros(2, 6)), way)
    return osdp.fully_shard(model, plans.apart(plan), process_group=me.group)


def value(entry: Any) -> Any:
    return entry.full_tensor() if isinstance(entry, DTensor) else entry


def same(got: Any, wanted: Any) -> None:
    assert set(got) == set(wanted)
    for key, entry in wanted.items():
        assert torch.equal(value(got[key]), entry), key


class Watched(nn.Module):
    """Notes what each piece of its own code sees."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, Tensor, list[str]]] = []
        self.weight = nn.Parameter(torch.randn(5, 6))  # rows that two ranks cannot share evenly
        self.inner = nn.Linear(5, 2)
        self.watch("first")

    def note(self, what: str, state: Any = ()) -> None:
        seen = [
            f"{key}: {tuple(state[key].shape)}" for key in sorted(state) if isinstance(state[key], Tensor)
        ]
        self.log.append((what, value(self.weight.detach()).clone(), seen))

    def watch(self, name: str) -> None:
        self.register_state_dict_pre_hook(lambda m, *_: m.note(f"{name} pre-hook"))
        self.register_state_dict_post_hook(lambda m, state, *_: m.note(f"{name} post-hook", state))
        self._register_state_dict_hook(lambda m, state, *_: m.note(f"{name} hook", state))
        self._register_load_state_dict_pre_hook(lambda state, *_: self.note(f"{name} bare load hook", state))
        self.register_load_state_dict_pre_hook(lambda m, state, *_: m.note(f"{name} load pre-hook", state))
        self.register_load_state_dict_post_hook(lambda m, _: m.note(f"{name} load post-hook"))

    def state_dict(self, *args, **kwargs):
        self.note("state_dict")
        return super().state_dict(*args, **kwargs)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        self.note("before saving")
        super()._save_to_state_dict(destination, prefix, keep_vars)
        self.note("saved", {k: v for k, v in destination.items() if k.startswith(prefix)})

    def get_extra_state(self):
        return value(self.weight.detach()).sum()

    def set_extra_state(self, state):
        self.note("extra state")

    def _load_from_state_dict(self, state, prefix, *rest):
        self.note("before loading", state)
        super()._load_from_state_dict(state, prefix, *rest)
        self.note("loaded")

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x @ self.weight.t())


def watched(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 6), Watched())


def own_code_sees_values(me: Member) -> None:
    for way in WAYS:
        with naming(way):
            plain, other, model = watched(0), watched(1).state_dict(), shard(me, watched(0), way)
            local = model[1].weight.shape
            for each in (plain, model):
                each[1].watch("later")
                state = each.state_dict()
                each.load_state_dict(other)
                each[1].state_dict(prefix="alone.")
            assert model[1].weight.shape == local
            got, wanted = model[1].log, plain[1].log
            assert [what for what, *_ in got] == [what for what, *_ in wanted]
            for (what, seen, entries), (_, expected, theirs) in zip(got, wanted, strict=True):
                assert torch.equal(seen, expected), what
                assert entries == theirs, what
            same(model.state_dict(), plain.state_dict())
            assert isinstance(state["1.weight"], DTensor) == (way == "blocks")
            assert torch.equal(state["1._extra_state"], watched(0)[1].weight.detach().sum())


@pytest.mark.outcome(
    "state-dict hooks, overridden methods and extra state of a module with sharded parameters", "equal"
)
def test_all_own_code_sees_values_in_torchs_order(ranks):
    ranks(own_code_sees_values, world=2)


def hooks_of_wrappers(me: Member) -> None:
    """Registered on a wrapper, outermost or inside, they run as in one process, with the wrapper; copies have their own."""

    def watch(model: nn.Module, log: list[Any]) -> list[Any]:
        def hook(name: str) -> Any:
            return lambda m, *rest: log.append((name, m, *[r for r in rest if isinstance(r, str)]))

        def saved(m: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
            log.append(("saved", m, prefix, tuple(state[prefix + "weight"].shape)))
            state[prefix + "doubled"] = 2 * state.pop(prefix + "weight")

        def loads(m: nn.Module, state: Any, prefix: str, *rest: Any) -> None:
            log.append(("loads", m, prefix))
            state[prefix + "weight"] = state.pop(prefix + "doubled") / 2

        inner = model[0]
        return [
            inner.register_state_dict_post_hook(saved),
            inner.register_load_state_dict_pre_hook(loads),
            model.register_state_dict_pre_hook(hook("pre-hook")),
            model._register_state_dict_hook(hook("hook")),
            model._register_load_state_dict_pre_hook(hook("load hook"), with_module=True),
            model.register_load_state_dict_post_hook(hook("loaded")),
        ]

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))
    model = copy.deepcopy(plain)
    model[0] = FSDP(model[0], me.group)
    logs: list[list[Any]] = [[], []]
    model = FSDP(model, me.group)
    handles = [watch(m, log) for m, log in ((plain, logs[0]), (model, logs[1]))]
    for each, log in ((plain, logs[0]), (model, logs[1]), (copy.deepcopy(model), logs[1])):
        log.clear()
        state = each.state_dict()
        assert sorted(state) == ["0.bias", "0.doubled", "1.bias", "1.weight"]
        each.load_state_dict(state)
        assert [m for _, m, *_ in log] == [each, each[0], each, each, each[0], each]
        assert [(what, *rest) for what, _, *rest in log] == [(what, *rest) for what, _, *rest in logs[0]]
    for handle in handles[1]:
        handle.remove()
    assert sorted(model.state_dict()) == ["0.bias", "0.weight", "1.bias", "1.weight"]


def test_hooks_that_are_registered_on_wrappers(ranks):
    ranks(hooks_of_wrappers, world=2)


class Fused(nn.Module):
    """Owns one weight, saves three and loads three."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(18, 6))
        self.register_state_dict_post_hook(self.split)
        self.register_load_state_dict_pre_hook(self.join)

    @staticmethod
    def split(module, state, prefix, metadata):
        for name, part in zip("qkv", state.pop(prefix + "w").chunk(3), strict=True):
            state[prefix + name] = part

    @staticmethod
    def join(module, state, prefix, *rest):
        state[prefix + "w"] = torch.cat([state.pop(prefix + name) for name in "qkv"])

    def forward(self, x: Tensor) -> Tensor:
        return sum((x @ self.w.t()).chunk(3, -1))


class Derived(nn.Linear):
    """Stores its parameter itself, doubled, and reads what was doubled; its norm follows what it loads."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.register_buffer("norm", torch.zeros(()))
        self.register_load_state_dict_post_hook(self.loaded)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.weight.detach() * 2
        destination[prefix + "itself"] = self.weight

    def _load_from_state_dict(self, state, prefix, *rest):
        state.pop(prefix + "itself", None)
        super()._load_from_state_dict(state, prefix, *rest)
        with torch.no_grad():
            self.weight.div_(2)

    @staticmethod
    def loaded(module, keys):
        with torch.no_grad():
            module.weight[0].zero_()
            module.norm.copy_(module.weight.norm())


class Tolerant(nn.Linear):
    """Leaves out what has another shape than its own weight."""

    def __init__(self) -> None:
        super().__init__(6, 6)

    def _load_from_state_dict(self, state, prefix, *rest):
        if prefix + "weight" in state and state[prefix + "weight"].shape != self.weight.shape:
            del state[prefix + "weight"]
        super()._load_from_state_dict(state, prefix, *rest)


class Table(nn.Module):
    """Loads tables of other sizes: crops them, or takes what is there; its parameter becomes a new one."""

    def __init__(self, rows: int = 7) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(rows, 6))

    def _load_from_state_dict(self, state, prefix, *rest):
        given = state[prefix + "table"]
        fitted = self.table.detach().clone()
        rows = min(len(given), len(fitted))
        fitted[:rows] = given[:rows]
        self.table = nn.Parameter(fitted)
        state[prefix + "table"] = fitted
        super()._load_from_state_dict(state, prefix, *rest)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table.sum(0)


class Halved(nn.Module):
    """A weight that is computed from another one, by torch's parametrisation; its extra state reads it."""

    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 2

    class Largest(nn.Linear):
        def get_extra_state(self):
            return {"largest": [self.weight.detach().abs().max()]}

        def set_extra_state(self, state):
            with torch.no_grad():
                self.bias.copy_(state["largest"][0] * self.weight.sum(1))

    def __init__(self) -> None:
        super().__init__()
        self.linear = self.Largest(6, 6)
        parametrize.register_parametrization(self.linear, "weight", self.Half())

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Tied(nn.Module):
    """Two modules own one weight; the second one stores it negated."""

    class Negated(nn.Linear):
        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "weight"] = -destination[prefix + "weight"]

        def _load_from_state_dict(self, state, prefix, *rest):
            state[prefix + "weight"] = -state[prefix + "weight"]
            super()._load_from_state_dict(state, prefix, *rest)

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), self.Negated(6, 6)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x))


class Around(nn.Module):
    """Owns no parameter; its code reads and writes those of its children."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_state_dict_pre_hook(lambda m, *_: m.total())
        self.register_state_dict_post_hook(self.saved)
        self.register_load_state_dict_pre_hook(self.loads)
        self.register_load_state_dict_post_hook(self.loaded)

    def total(self) -> Tensor:
        both = torch.cat([self.one.weight, self.other.weight])
        elements = sum(p.numel() for p in self.parameters() if p.requires_grad)
        return both.detach().square().sum() + elements

    def get_extra_state(self):
        return self.total() + self.one.weight.shape[0]

    def set_extra_state(self, state):
        with torch.no_grad():
            self.one.bias.add_(self.other.weight[0])

    @staticmethod
    def saved(module, state, prefix, metadata):
        state[prefix + "total"] = module.total()
        state[prefix + "itself"] = module.other.weight
        state[prefix + "largest"] = max(p.abs().max() for p in module.parameters()).detach()

    @staticmethod
    def loads(module, state, prefix, *rest):
        for name in ("total", "itself", "largest"):
            state.pop(prefix + name)
        own = dict(module.named_parameters(prefix.removesuffix(".")))
        for key in [k for k, p in own.items() if state[k].shape != p.shape]:
            del state[key]

    @staticmethod
    def loaded(module, keys):
        with torch.no_grad():
            module.one.weight.mul_(2)
            module.other.weight.copy_(module.one.weight + module.one.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x))


KINDS = (Fused, Derived, Tolerant, Table, Halved, Tied, Around)


def around(kind: type[nn.Module], seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 6), kind(), nn.Linear(6, 2))


def saved_and_loaded(me: Member) -> None:
    for way in ("NO_SHARD", "FULL_SHARD", "class", "blocks"):
        for kind in KINDS:
            with naming(f"{way} {kind.__name__}"):
                plain, other = around(kind, 0), around(kind, 1)
                model = shard(me, around(kind, 0), way)
                if kind is not Halved:  # its extra state is a dictionary
                    same(model.state_dict(), plain.state_dict())
                for each in (plain, model):
                    each.load_state_dict(other.state_dict())
                local = [p.shape for p in model.parameters()]
                with osdp.summon_full_params(runtime_model(model), writeback=False):
                    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                        assert torch.equal(mine, theirs)
                assert [p.shape for p in model.parameters()] == local
                if kind is not Halved:
                    same(model.state_dict(), plain.state_dict())
                    for each in (
                        plain,
                        model,
                    ):  # DTensors, of the ways that have them; not those that share memory
                        each.load_state_dict({k: v.detach().clone() for k, v in each.state_dict().items()})
                    same(model[1].state_dict(), plain[1].state_dict())
                x = torch.randn(2, 6)
                close(model(x), plain(x), 1e-6, "outputs")


def runtime_model(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, FSDP) else model


@pytest.mark.outcome("state-dict code of a module that reads and writes its children's parameters", "equal")
@pytest.mark.outcome(
    "a fused weight that hooks split and join, derived entries, tables cropped on loading", "equal"
)
def test_state_dicts_of_modules_with_own_code(ranks):
    ranks(saved_and_loaded, world=2)


class Fails(nn.Linear):
    """Fails where it is told to."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.at = ""
        self.register_state_dict_post_hook(lambda m, *_: m.may_fail("post-hook"))
        self.register_load_state_dict_pre_hook(lambda m, *_: m.may_fail("load pre-hook"))
        self.register_load_state_dict_post_hook(lambda m, _: m.may_fail("load post-hook"))

    def may_fail(self, what: str) -> None:
        if what == self.at:
            if not isinstance(self.weight, DTensor):  # which shares the rows' memory, as in FSDP2
                with torch.no_grad():
                    self.weight.zero_()
            raise KeyError(what)

    def get_extra_state(self):
        return self.may_fail("extra state")

    def set_extra_state(self, state):
        self.may_fail("set extra state")


def failing(me: Member) -> None:
    for way in ("FULL_SHARD", "class", "blocks"):
        model = shard(me, around(Fails, 0), way)
        wanted = [held(p).detach().clone() for p in model.parameters()]
        state = around(Fails, 0).state_dict()
        for at in ("extra state", "post-hook", "load pre-hook", "set extra state", "load post-hook"):
            with naming(f"{way}, {at}"):
                model[1].at = at
                with pytest.raises(KeyError, match=at):
                    model.load_state_dict(state) if at.startswith(("load", "set")) else model.state_dict()
                model[1].at = ""
                for got, before in zip(model.parameters(), wanted, strict=True):
                    assert torch.equal(held(got), before)
                same({k: v for k, v in model.state_dict().items() if "extra" not in k}, wanted_state(state))
                model.load_state_dict(state)
        close(model(torch.ones(1, 6)), around(Fails, 0)(torch.ones(1, 6)), 1e-6, "outputs")


def wanted_state(state: Any) -> Any:
    return {k: v for k, v in state.items() if "extra" not in k}


def test_own_code_that_fails_leaves_the_rows_as_they_were(ranks):
    ranks(failing, world=2)


def fails_on_one_rank(me: Member) -> None:
    model = shard(me, around(Fails, 0), "FULL_SHARD")
    before = [p.detach().clone() for p in model.parameters()]
    model[1].at = "post-hook" if me.rank == 0 else ""
    if me.rank == 0:
        with pytest.raises(KeyError, match="post-hook"):
            model.state_dict()
    # The other rank waits for this one's rows of the next module, and this one goes on with something else.
    with pytest.raises(osdp.OrderError):
        model.state_dict() if me.rank else model(torch.ones(2, 6))
    for got, wanted in zip(model.parameters(), before, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.outcome("a state-dict hook that raises on one rank, which goes on", osdp.OrderError)
def test_own_code_that_fails_on_one_rank():
    for ending in run_doomed(fails_on_one_rank, world=2, timeout_s=20.0):
        assert ending.error is None and ending.signal is None, ending.output or ending


def forms(me: Member) -> None:
    """On the host, on rank 0 alone, sharded; local rows are refused."""
    for kind in (Fused, Derived, Tied):
        plain, model = around(kind, 0), shard(me, around(kind, 0), "class")
        outer = nn.ModuleDict({"a": model})
        for each in (plain, outer["a"]):
            each.register_state_dict_post_hook(lambda m, state, *_: state.update(added=torch.ones(1)))
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
            state = model.state_dict()
            same(state, plain.state_dict() if me.rank == 0 else {})
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()):
            state = model.state_dict()
            assert any(isinstance(v, DTensor) for v in state.values())
            same(state, plain.state_dict())
            model.load_state_dict({key: value for key, value in state.items() if key != "added"})
        code = {
            Fused: "state_dict_hook Fused.split",
            Derived: "_save_to_state_dict",
            Tied: "_save_to_state_dict",
        }
        with pytest.raises(osdp.ShardingError, match=rf"{code[kind]} of '1.*rows"):
            model.local_state_dict()
        local = {name: p.detach() for name, p in model.named_parameters()}
        with pytest.raises(osdp.ShardingError, match=r"of '1.*rows"):
            model.load_local_state_dict(local)


@pytest.mark.outcome("`local_state_dict` of a module with state-dict code of its own", osdp.ShardingError)
def test_forms_of_state_dicts_of_modules_with_own_code(ranks):
    ranks(forms, world=2)


def layers(seed: int) -> nn.Sequential:
    """A layer with hooks, which may still be computed in slices: it stores its weight twice."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2))

    def saved(module, state, prefix, metadata):
        state[prefix + "squares"] = module.weight.detach().square()
        state[prefix + "bias"] = state[prefix + "bias"] + state[prefix + "weight"].sum(1)

    def loads(module, state, prefix, *rest):
        squares = state.pop(prefix + "squares")
        assert squares.shape == module.weight.shape
        state[prefix + "weight"] = squares + module.weight.detach()

    model[1].register_state_dict_post_hook(saved)
    model[1].register_load_state_dict_pre_hook(loads)
    return model


def sliced_and_hybrid(me: Member) -> None:
    for way in ("out", "in", "hybrid", "summoned"):
        with naming(way):
            plain, model = layers(0), layers(0)
            described = describe_once(model, torch.zeros(2, 6))
            if way in ("out", "in"):
                plan = osdp.Plan.uniform(described, "FULL_SHARD").replace(
                    {"1": osdp.Choice("FULL_SHARD", granularity=2, sharded_slices=1, split=way)}
                )
                osdp.fully_shard(model, plan, me.group)
            elif way == "hybrid":
                osdp.fully_shard(
                    model, osdp.Plan.uniform(described, "HYBRID_SHARD"), me.group, ranks_per_host=2
                )
            else:
                osdp.fully_shard(model, osdp.Plan.uniform(described, "FULL_SHARD"), me.group)
            other = layers(1).state_dict()
            if way == "summoned":
                with osdp.summon_full_params(model):
                    state = model.state_dict()
                    model.load_state_dict(other)
                same(state, plain.state_dict())
            else:
                same(model.state_dict(), plain.state_dict())
                model.load_state_dict(other)
            plain.load_state_dict(other)
            same(model.state_dict(), plain.state_dict())


def test_own_code_of_slices_and_hybrid_sharding(ranks):
    ranks(sliced_and_hybrid, world=4)


def copies_of_parts(me: Member) -> None:
    """A part without sharded parameters can be copied, and is then a module of its own; one that has some cannot."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    plan = osdp.Plan.uniform(describe_once(model, torch.zeros(2, 6)), "FULL_SHARD")
    osdp.fully_shard(model, plan.replace({"1": osdp.Choice("NO_SHARD")}), me.group)
    held = io.BytesIO()
    torch.save(model[1], held)
    held.seek(0)
    for made in (copy.deepcopy(model[1]), torch.load(held, weights_only=False)):
        made.load_state_dict({name: value + 1 for name, value in model[1].state_dict().items()})
        assert bool((made.weight == 2).all()) and bool((model[1].weight == 1).all())
        assert bool((made.state_dict()["weight"] == 2).all())
    for part in (model[0], nn.ModuleList([model[0]])):
        for copying in (copy.deepcopy, pickle.dumps):
            with pytest.raises(osdp.ShardingError, match=r"cannot be (copied|pickled)"):
                copying(part)


def test_copies_of_parts_have_state_dicts_of_their_own(ranks):
    ranks(copies_of_parts, world=2)


def checkpoint(me: Member, directory: Path) -> None:
    """osdp.save and load keep what the parameters are, whatever their modules make of it in state dicts."""
    for kind in (Fused, Derived, Around):
        saved, model = shard(me, around(kind, 0), "FULL_SHARD"), shard(me, around(kind, 1), "NO_SHARD")
        told = (
            pytest.warns(UserWarning, match="extra state .* of '1', a Around")
            if kind is Around
            else nullcontext()
        )
        with told:
            osdp.save(saved, None, directory / kind.__name__)
        osdp.load(model, None, directory / kind.__name__)
        same(model.state_dict(), around(kind, 0).state_dict())


def test_checkpoints_of_modules_with_own_code(ranks, tmp_path):
    ranks(checkpoint, tmp_path, world=2)


class Renames(nn.Module):
    """Its own load_state_dict calls torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 6))
        self.inner = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x @ self.weight.T)

    def load_state_dict(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        renamed = {name.removeprefix("old."): value for name, value in state.items()}
        return super().load_state_dict(renamed, *args, **kwargs)


def renamed(me: Member) -> None:
    for way in WAYS:
        with naming(way):
            torch.manual_seed(1)
            wanted = Renames().state_dict()
            model = shard(me, Renames(), way)
            model.load_state_dict({f"old.{name}": entry for name, entry in wanted.items()})
            same(model.state_dict(), wanted)
            kept = {f"old.{name}": entry.clone() for name, entry in model.state_dict().items()}
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            model.load_state_dict(kept, assign=True)  # of DTensors, where these are its state dict's
            same(model.state_dict(), wanted)
    model = shard(me, Renames(), "class")
    with pytest.raises(osdp.ShardingError, match="load_state_dict of 'the model', a Renames"):
        model.load_local_state_dict(model.local_state_dict())


def test_a_load_state_dict_of_its_own(ranks):
    ranks(renamed, world=2)
