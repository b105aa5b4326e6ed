"""A plan made at the first forward traces it in the middle of the user's step: no cache may keep a tensor without values."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from harness import Member
from support.pair import SEED, adamw, close, naming
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize

import osdp

MANY = 600  # squared: too many elements for a trace to know their values
IN_A_DICT: dict[int, Tensor] = {}
IN_A_LIST: list[Tensor] = []
ALONE: Tensor | None = None


@functools.lru_cache
def by_functools(size: int) -> Tensor:
    return torch.ones(size, size).triu()


def in_a_default(size: int, known: dict[int, Tensor] = {}) -> Tensor:  # noqa: B006
    return known.setdefault(size, torch.ones(size, size).triu())


def remembered(function: Callable[[int], Tensor]) -> Callable[[int], Tensor]:
    known: dict[int, Tensor] = {}
    last: Tensor | None = None

    def call(size: int) -> Tensor:
        nonlocal last
        last = known.setdefault(size, function(size)) if last is None else last
        return last

    return call


@remembered
def in_a_closure(size: int) -> Tensor:
    return torch.ones(size, size).triu()


def in_a_dict(size: int) -> Tensor:
    return IN_A_DICT.setdefault(size, torch.ones(size, size).triu())


def in_a_list(size: int) -> Tensor:
    IN_A_LIST[:] = IN_A_LIST or [torch.ones(size, size).triu()]
    return IN_A_LIST[0]


def alone(size: int) -> Tensor:
    global ALONE
    ALONE = torch.ones(size, size).triu() if ALONE is None else ALONE
    return ALONE


def in_an_attribute(size: int) -> Tensor:
    if not hasattr(in_an_attribute, "known"):
        in_an_attribute.known = torch.ones(size, size).triu()
    return in_an_attribute.known


class Keeper:
    known: Tensor | None = None

    @classmethod
    def in_a_class(cls, size: int) -> Tensor:
        cls.known = torch.ones(size, size).triu() if cls.known is None else cls.known
        return cls.known


CACHES = (by_functools, in_a_default, in_a_closure, in_a_dict, in_a_list, alone, in_an_attribute)
CACHES = (*CACHES, Keeper.in_a_class)


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


class Net(nn.Module):
    def __init__(self, cache: Callable[[int], Tensor] | None = None) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        parametrize.register_parametrization(self.middle, "weight", Symmetric())
        self.cache = cache

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.middle(self.first(x).tanh()).tanh())
        return x * self.cache(MANY)[1, 1] if self.cache else x


def built(cache: Callable[[int], Tensor] | None, seed: int = SEED) -> Net:
    torch.manual_seed(seed)
    return Net(cache).double()


def by_blocks(model: nn.Module, me: Member) -> nn.Module:
    mesh = torch.distributed.device_mesh.DeviceMesh.from_group(me.group, "cpu")
    for child in model.children():
        osdp.fully_shard(child, mesh=mesh)
    return osdp.fully_shard(model, mesh=mesh)


def by_class(model: nn.Module, me: Member) -> nn.Module:
    return osdp.FullyShardedDataParallel(model, me.group)


def searched(model: nn.Module, me: Member) -> nn.Module:
    return osdp.FullyShardedDataParallel(model, me.group, memory="1GiB")


@contextlib.contextmanager
def in_autocast() -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16), parametrize.cached():
        yield


def train(
    me: Member, whole: nn.Module, model: nn.Module, around: Callable[..., object], tolerance: float
) -> None:
    """The sharded model first: the other would fill the caches with tensors that have values."""
    torch.manual_seed(3)
    both = [(m, adamw(m.parameters())) for m in (model, whole)]
    for _ in range(2):
        x = torch.randn(2 * me.world, 6).to(next(whole.parameters()).dtype)
        losses = []
        for (m, optimizer), data in zip(both, (me.part(x), x), strict=True):
            with around():
                optimizer.zero_grad()
                losses.append(m(data).square().mean())
                losses[-1].backward()
                optimizer.step()
        close(me.mean(losses[0]), losses[1], tolerance, "loss")


def cached(me: Member) -> None:
    for shard in (by_class, by_blocks, searched):
        for around in (parametrize.cached, in_autocast):
            with naming(f"{shard.__name__}, {around.__name__}"):
                tolerance = 1e-9 if around is parametrize.cached else 2e-2
                whole, model = built(None), shard(built(None, SEED + me.rank), me)
                if around is in_autocast:
                    whole, model = built(None).float(), shard(built(None, SEED + me.rank).float(), me)
                train(me, whole, model, around, tolerance)
                assert not parametrize._cache


@pytest.mark.outcome("the first forward, described, in `parametrize.cached()` or autocast", "equal")
def test_torchs_caches(ranks):
    ranks(cached, world=2)


def kept(me: Member) -> None:
    for number, cache in enumerate(CACHES):
        shard = (by_class, by_blocks)[number % 2]
        with naming(f"{getattr(cache, '__name__', cache)}, {shard.__name__}"):
            train(me, built(cache), shard(built(cache, SEED + me.rank), me), contextlib.nullcontext, 1e-9)
            empty()
            described = built(cache)
            osdp.describe(described, torch.zeros(2, 6).double())
            assert type(described(torch.zeros(2, 6).double())) is Tensor
            empty()


def empty() -> None:
    global ALONE
    IN_A_DICT.clear(), IN_A_LIST.clear(), by_functools.cache_clear()
    in_a_default.__defaults__[0].clear()
    vars(in_an_attribute).pop("known", None)
    ALONE = Keeper.known = None


@pytest.mark.outcome(
    "a forward that keeps tensors in globals, classes, closures or `lru_cache`, described at its first call",
    "equal",
)
def test_caches_of_the_users_code(ranks):
    ranks(kept, world=2)


def without_values(me: Member) -> None:
    for mode in ("NO_SHARD", "FULL_SHARD"):
        with naming(mode):
            model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4))
            x = torch.randn(2, 6)
            osdp.fully_shard(model, osdp.Plan.uniform(osdp.describe(model, x), mode), me.group)
            with FakeTensorMode(allow_non_fake_inputs=True) as fake:
                like, gradient = fake.from_tensor(x), fake.from_tensor(torch.zeros(4, 6))
            with pytest.raises(osdp.ShardingError, match=r"input .*\[2, 6\], is a fake tensor"):
                model(like)
            handle = model.register_forward_pre_hook(lambda *_, like=like: like)
            with pytest.raises(osdp.ShardingError, match=r"\[2, \d\]"):
                model(x)
            handle.remove()
            handle = model[1].weight.register_hook(lambda _, gradient=gradient: gradient)
            with pytest.raises(osdp.ShardingError, match=r"'1\.weight'"):
                model(x).sum().backward()
            handle.remove()
            model.zero_grad()
            local = model[1].weight.data
            model[1].weight.data = fake.from_tensor(local)
            with pytest.raises(osdp.ShardingError, match=r"'1\.weight' is now .* on meta"):
                model(x)
            model[1].weight.data = local
            model(x).sum().backward()


@pytest.mark.outcome(
    "a tensor without values (fake, meta) as an input, an output, a gradient or a parameter",
    osdp.ShardingError,
)
def test_tensors_without_values(ranks):
    ranks(without_values, world=2)
