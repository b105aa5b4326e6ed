"""Submodules of a sharded model that are called directly, with parameters that are gathered further out and whose rows
broadcast: they gather what is inside of them, and what is not gathered is never a rank's rows."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import plans
from support.pair import SEED, close, cut, held, naming
from support.said import ungathered
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

import osdp
from osdp.sharding.sharded_model import runtime_of


class Gate(nn.Module):
    """Owns a parameter beside its children, and reads one of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.temperature = nn.Linear(2, 2), nn.Linear(2, 2), nn.Parameter(torch.rand(2))

    def forward(self, x: Tensor) -> Tensor:
        return (self.up(x) * self.temperature).tanh() * self.down.bias + self.down(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.rest = Gate(), nn.ModuleList([nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2))])

    def forward(self, x: Tensor) -> Tensor:
        return self.rest[0](x + self.gate(x))


class Net(nn.Module):
    """Parameters of its own, each with at most one row per rank."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.scale, self.column = (
            Block(),
            nn.Parameter(torch.rand(2)),
            nn.Parameter(torch.rand(2, 1)),
        )
        self.position = nn.Parameter(torch.rand(1, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x * self.scale + self.position) * self.scale + self.column


PARTS = ("block", "block.gate", "block.gate.up", "block.rest.0", "block.rest.0.0", "")
X = torch.rand(2, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))  # alike on all ranks


def by_plan(model: nn.Module, me: Member, plan: osdp.Plan) -> nn.Module:
    return osdp.fully_shard(model, plan, me.group)


def by_blocks(model: nn.Module, me: Member) -> nn.Module:
    mesh = DeviceMesh.from_group(me.group, "cpu")
    osdp.fully_shard(model.block, mesh=mesh)
    return osdp.fully_shard(model, mesh=mesh)


SHARDED = {
    "traced": lambda m, me: by_plan(m, me, osdp.Plan.uniform(osdp.describe(m, X), "FULL_SHARD")),
    "apart": lambda m, me: by_plan(
        m, me, plans.apart(osdp.Plan.uniform(osdp.describe(m, X), "SHARD_GRAD_OP"))
    ),
    "untraced": lambda m, me: by_plan(m, me, osdp.Plan.uniform(osdp.describe(m), "FULL_SHARD")),
    "class": lambda m, me: osdp.FullyShardedDataParallel(m, me.group),
    "blocks": by_blocks,
}


def built() -> Net:
    torch.manual_seed(SEED)
    return Net().double()


def by_themselves(me: Member) -> None:
    for name, shard in SHARDED.items():
        whole, model = built(), shard(built(), me)
        inner = getattr(model, "module", model)
        for part in PARTS:
            with naming(f"{name}, {part!r}"):
                with torch.no_grad():
                    close(
                        inner.get_submodule(part)(X), whole.get_submodule(part)(X), 1e-12, "without a graph"
                    )
                given = [X.clone().requires_grad_() for _ in range(2)]
                for m, x in zip((whole, inner), given, strict=True):
                    m.get_submodule(part)(x).square().sum().backward()
                close(given[1].grad, given[0].grad, 1e-12, "gradient of the input")
                wanted, runtime = dict(whole.named_parameters()), runtime_of(model)
                for key, parameter in inner.named_parameters():
                    full = wanted[key].grad
                    assert (full is None) == (parameter.grad is None), key
                    for piece in runtime.pieces(key) if full is not None else ():
                        close(piece.view(held(parameter.grad)), cut(piece, full), 1e-12, key)
                whole.zero_grad(), model.zero_grad()
                assert runtime.gathered_bytes() == 0


@pytest.mark.outcome("a submodule called by itself, whose parameters are gathered further out", "equal")
def test_parts_called_by_themselves_train_as_in_one_process(ranks):
    ranks(by_themselves, world=2)


def reached_out(me: Member) -> None:
    """A call of a part shows no other parameter's rows."""
    for name in ("apart", "blocks"):
        with naming(name):
            model = SHARDED[name](built(), me)
            up = model.block.gate.up
            handle = up.register_forward_pre_hook(lambda _, args, model=model: args[0] * model.scale)
            with (
                torch.no_grad(),
                pytest.raises(osdp.ShardingError, match=ungathered(r"scale")),
            ):
                up(X)
            handle.remove()
            close(up(X), built().block.gate.up(X), 1e-12, "afterwards")


@pytest.mark.outcome(
    "a submodule called by itself that reads a parameter of another one, in its forward or a hook",
    osdp.ShardingError,
)
def test_parts_that_reach_out(ranks):
    ranks(reached_out, world=2)
