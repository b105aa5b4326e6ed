"""Parameters and buffers of unusual memory, layout or type, under each way to shard them: trained as in one process, or
refused by name before anything is sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from harness import Member
from support.pair import close, naming
from torch import Tensor, nn

import osdp


class Body(nn.Module):
    """A layer, and a tensor `odd` that its forward uses."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        add, self.use = KINDS[kind]
        add(self)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.use(self, self.layer(x))


Add, Use = Callable[[Body], None], Callable[[Body, Tensor], Tensor]


def parameter(value: Callable[[], Tensor], trained: bool = True) -> Add:
    return lambda body: body.register_parameter("odd", nn.Parameter(value(), requires_grad=trained))


def buffer(value: Callable[[], Tensor]) -> Add:
    return lambda body: body.register_buffer("odd", value())


def of_body(value: Callable[[Body], Tensor]) -> Add:
    return lambda body: body.register_buffer("odd", value(body))


def twice(second: slice, kind: type = Tensor) -> Add:
    """Two tensors of one memory."""

    def add(body: Body) -> None:
        flat = torch.rand(12)
        for name, value in (("odd", flat[:6]), ("other", flat[second])):
            body.register_buffer(name, value) if kind is Tensor else setattr(body, name, nn.Parameter(value))

    return add


def times(body: Body, h: Tensor) -> Tensor:
    return h * body.odd


def both(body: Body, h: Tensor) -> Tensor:
    return h * body.odd + body.other


def of_complex(body: Body, h: Tensor) -> Tensor:
    return torch.view_as_real(h.to(torch.complex128) * body.odd).sum(-1)


def matrix(body: Body, h: Tensor) -> Tensor:
    return h @ body.odd


def conv(body: Body, h: Tensor) -> Tensor:
    return nn.functional.conv2d(h.view(-1, 6, 1, 1), body.odd, padding="same").view(-1, 6)


def nothing(body: Body, h: Tensor) -> Tensor:
    return h + body.odd.sum()


def channels_last() -> Tensor:
    return torch.rand(6, 6, 3, 3).to(memory_format=torch.channels_last)


def in_inference_mode() -> Tensor:
    with torch.inference_mode():
        return torch.rand(6)


def drawn_complex() -> Tensor:
    return torch.rand(6, dtype=torch.complex128)


class Sub(Tensor):
    pass


class OwnParameter(nn.Parameter):
    pass


KINDS: dict[str, tuple[Add, Use]] = {
    "0-dim": (parameter(lambda: torch.tensor(0.5)), times),
    "0-dim, frozen": (parameter(lambda: torch.tensor(0.5), False), times),
    "0-dim buffer": (buffer(lambda: torch.tensor(0.5)), times),
    "complex": (parameter(drawn_complex), of_complex),
    "complex, 0-dim": (parameter(lambda: drawn_complex()[0].clone()), of_complex),
    "complex buffer": (buffer(drawn_complex), of_complex),
    "channels_last": (parameter(channels_last), conv),
    "channels_last buffer": (buffer(channels_last), conv),
    "transposed": (parameter(lambda: torch.rand(6, 6).t()), matrix),
    "transposed, frozen": (parameter(lambda: torch.rand(6, 6).t(), False), matrix),
    "strided": (parameter(lambda: torch.rand(6, 12)[:, ::2]), matrix),
    "empty": (parameter(lambda: torch.empty(0, 6)), nothing),
    "empty rows": (parameter(lambda: torch.empty(6, 0)), nothing),
    "empty buffer": (buffer(lambda: torch.empty(0)), nothing),
    "integers": (parameter(lambda: torch.randint(9, (6,)), False), times),
    "bools": (parameter(lambda: torch.rand(6) > 0.3, False), times),
    "bytes": (parameter(lambda: torch.randint(9, (7, 6), dtype=torch.uint8), False), lambda m, h: h * m.odd[0]),
    "bool buffer": (buffer(lambda: torch.rand(6) > 0.3), times),
    "buffers of one memory": (twice(slice(6)), both),
    "buffers that overlap": (twice(slice(1, 7)), both),
    "parameters beside each other": (twice(slice(6, 12), nn.Parameter), both),
    "a subclass of Tensor as buffer": (buffer(lambda: torch.rand(6).as_subclass(Sub)), times),
    "a subclass of Tensor": (parameter(lambda: torch.rand(6).as_subclass(Sub)), times),
    "a subclass of Parameter": (lambda m: m.register_parameter("odd", OwnParameter(torch.rand(6))), times),
}  # fmt: skip
# Where a parameter is sharded; otherwise they are equal, too.
ALIASES: dict[str, tuple[Add, Use]] = {
    "an alias of a weight": (of_body(lambda m: m.layer.weight.data), matrix),
    "a row of a weight": (of_body(lambda m: m.layer.weight.detach()[1]), times),
    "a weight transposed": (of_body(lambda m: m.layer.weight.detach().t()), matrix),
    "parameters of one memory": (twice(slice(6), nn.Parameter), both),
    "parameters that overlap": (twice(slice(1, 7), nn.Parameter), both),
}
REFUSED: dict[str, tuple[Add, Use]] = {
    "conjugated": (buffer(lambda: drawn_complex().conj()), of_complex),
    "negated": (buffer(lambda: drawn_complex().conj().imag), times),
    "expanded": (buffer(lambda: torch.rand(6).expand(2, 6)), lambda m, h: h * m.odd[0]),
    "of inference mode": (parameter(in_inference_mode, False), times),
    "of inference mode, buffer": (buffer(in_inference_mode), times),
    "sparse": (parameter(lambda: torch.eye(6).to_sparse()), lambda m, h: (m.odd @ h.t()).t()),
    "sparse buffer": (buffer(lambda: torch.eye(6).to_sparse_csr()), lambda m, h: (m.odd @ h.t()).t()),
}
EQUAL = list(KINDS)
KINDS |= ALIASES | REFUSED
MESSAGES = {
    "conjugated": r"buffer '(0\.)?odd' is a lazy conjugate.*resolve_conj",
    "negated": r"buffer '(0\.)?odd' is a lazy negative.*resolve_neg",
    "expanded": r"buffer '(0\.)?odd' is an expanded tensor",
    "of inference mode": r"parameter '(0\.)?odd' was made inside torch\.inference_mode",
    "of inference mode, buffer": r"buffer '(0\.)?odd' was made inside torch\.inference_mode",
    "sparse": r"parameter '(0\.)?odd' is a tensor of layout torch\.sparse_coo",
    "sparse buffer": r"buffer '(0\.)?odd' is a tensor of layout torch\.sparse_csr",
    **dict.fromkeys(ALIASES, r"buffer '(0\.)?odd' shares memory with parameter '(0\.)?layer\.weight'"),
    "parameters of one memory": r"parameter '(0\.)?(odd|other)' shares memory with parameter '(0\.)?(odd|other)'",
    "parameters that overlap": r"parameter '(0\.)?(odd|other)' shares memory with parameter '(0\.)?(odd|other)'",
}


@contextmanager
def in_float64() -> Iterator[None]:
    """Not `.double()`, which would give aliases memory of their own."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


MODES = ("FULL_SHARD", "NO_SHARD", "SHARD_GRAD_OP")


def by_plan(model: nn.Module, me: Member, x: Tensor, mode: str = "FULL_SHARD") -> nn.Module:
    return osdp.fully_shard(model, osdp.Plan.uniform(osdp.describe(model, x), mode), me.group)


def by_class(model: nn.Module, me: Member, x: Tensor) -> nn.Module:
    return osdp.FullyShardedDataParallel(model, me.group)


def by_block(model: nn.Module, me: Member, x: Tensor) -> nn.Module:
    for part in (model[0], model[2], model):
        osdp.fully_shard(part, process_group=me.group)
    return model


WAYS = {"plan": by_plan, "class": by_class, "blocks": by_block}


def built(kind: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    with in_float64():
        return nn.Sequential(Body(kind), nn.Tanh(), Body(kind))


def train(me: Member, kind: str, way: str, x: Tensor) -> None:
    if way != "plan":
        return compare(me, kind, x, WAYS[way](built(kind, 3 + me.rank), me, me.part(x)))
    description = me.once(lambda: osdp.describe(built(kind, 3), me.part(x)))
    for mode in ("FULL_SHARD", "NO_SHARD"):  # rows of SHARD_GRAD_OP are FULL_SHARD's
        if mode == "NO_SHARD" or kind not in ALIASES:
            plan = osdp.Plan.uniform(description, mode)
            with naming(mode):
                compare(me, kind, x, osdp.fully_shard(built(kind, 3 + me.rank), plan, me.group))


def compare(me: Member, kind: str, x: Tensor, sharded: nn.Module) -> None:
    whole = built(kind, 3)
    optimizers = [
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.5)
        for model in (whole, sharded)
    ]
    for _ in range(2):  # the second with momentum
        wanted, loss = whole(x).square().mean(), sharded(me.part(x)).square().mean()
        close(me.mean(loss), wanted, 1e-9, "loss")
        wanted.backward(), loss.backward()
        for optimizer in optimizers:
            optimizer.step(), optimizer.zero_grad()
    got = sharded.state_dict()
    assert list(got) == list(whole.state_dict())
    for name, value in whole.state_dict().items():
        close(got[name].full_tensor() if hasattr(got[name], "full_tensor") else got[name], value, 1e-9, name)


def each_kind(me: Member, way: str) -> None:
    torch.manual_seed(5)
    x = torch.randn(4 * me.world, 6, dtype=torch.float64)
    for kind in (*EQUAL, *(ALIASES if way == "plan" else ())):
        with naming(kind):
            train(me, kind, way, x)
    modes, sharding = (MODES, [m for m in MODES if m != "NO_SHARD"]) if way == "plan" else ((None,), [None])
    refused = [*zip(REFUSED, itertools.cycle(modes), strict=False), *itertools.product(ALIASES, sharding)]
    for kind, mode in refused:
        given = (me, me.part(x), *([mode] if mode else []))
        with naming(f"{kind}, {mode}"), pytest.raises(osdp.ShardingError, match=MESSAGES[kind]):
            WAYS[way](built(kind, 3), *given)
    train(me, EQUAL[0], way, x)  # nothing was sent


@pytest.mark.outcome("0-dim, complex, channels_last, transposed, empty and integer parameters", "equal")
@pytest.mark.outcome(
    "a buffer or parameter that shares memory with a sharded parameter (`.data` of another, a view)",
    osdp.ShardingError,
)
@pytest.mark.parametrize("way", WAYS)
def test_each_kind_of_tensor(ranks, way):
    ranks(each_kind, way, world=2)


def across_blocks(me: Member) -> None:
    """The alias is outside of the block that was sharded first."""
    for alias in (nn.Parameter, nn.Module.register_buffer):
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
        if alias is nn.Parameter:
            model[1].weight = alias(model[0].weight.data)
        else:
            model.register_buffer("seen", model[0].weight.detach())
        osdp.fully_shard(model[0], process_group=me.group)
        with pytest.raises(osdp.ShardingError, match=r"'(1\.weight|seen)'.*'weight'"):
            osdp.fully_shard(model, process_group=me.group)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight  # tied rightly
    for part in (model[0], model):
        osdp.fully_shard(part, process_group=me.group)


def test_an_alias_outside_of_the_block(ranks):
    ranks(across_blocks, world=2)
