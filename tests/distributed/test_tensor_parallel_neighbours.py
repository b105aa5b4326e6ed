"""What else scripts do with a model: frozen parts, hooks, copies, evaluation, losses over the mesh, other optimizers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from harness import Member
from support.descriptions import describe_once
from support.pair import adamw, close, naming
from support.said import ungathered
from support.tensor_parallel import Net, loss, mesh_of, net, parallelized, tokens
from test_tensor_parallel import MODES, pair_of
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module
from torch.utils.checkpoint import checkpoint

import osdp


def around_a_step(me: Member) -> None:
    for mode in MODES:
        with naming(mode):
            pair = pair_of(me, mode)
            seen: list[torch.Size] = []
            for model in (pair.whole, pair.sharded):
                model.get_parameter("blocks.0.up.weight").requires_grad_(False)
            norm = pair.sharded.get_parameter("norm.weight")

            def doubled(gradient: torch.Tensor, seen: list[torch.Size] = seen) -> torch.Tensor:
                seen.append(gradient.shape)
                return 2 * gradient

            norm.register_hook(doubled)
            pair.whole.get_parameter("norm.weight").register_hook(lambda g: 2 * g)
            pair.train(steps=2)
            assert seen == 2 * [torch.Size([8])]
            pair.same_parameters()
            for model in (pair.whole, pair.sharded):
                model.get_parameter("blocks.0.up.weight").requires_grad_(True)
                model.get_parameter("blocks.1.down.weight").requires_grad_(False)
            pair.train(steps=2)
            pair.same_parameters()
            for context in (torch.no_grad(), torch.inference_mode()):
                with context:
                    close(pair.sharded(tokens(3, 2)), pair.whole(tokens(3, 2)), 1e-9, "evaluation")


def test_frozen_parts_hooks_and_evaluation(ranks):
    ranks(around_a_step, world=4)


def copied(me: Member) -> None:
    for mode in ("NO_SHARD", "FULL_SHARD"):
        with naming(mode):
            pair = pair_of(me, mode)
            pair.train(steps=1)
            made = copy.deepcopy(pair.sharded)
            pair.sharded = made
            pair.both[1] = (made, adamw(made.parameters()))
            pair.both[0] = (pair.whole, adamw(pair.whole.parameters()))
            pair.train(steps=1)
            pair.same_parameters()


def test_copies_keep_their_layout(ranks):
    ranks(copied, world=4)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def extra_repr(self) -> str:  # of what describe_once tells apart
        return f"reentrant={self.reentrant}"

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def recomputed(me: Member) -> None:
    for reentrant in (False, True):
        with naming(f"reentrant: {reentrant}"):
            mesh = mesh_of(me, 2, 2)
            model = parallelized(net(), mesh["tp"])
            for i, block in enumerate(model.blocks):
                model.blocks[i] = Checkpointed(block, reentrant)
            osdp.fully_shard(model, osdp.Plan.uniform(describe_once(model, tokens(0, 2)), "FULL_SHARD"),
                             device_mesh=mesh["dp"])  # fmt: skip
            whole = net()
            batch, targets = tokens(0, 4), tokens(50, 4)
            loss(whole(batch), targets).backward()
            loss(model(batch.chunk(2)[me.rank // 2]), targets.chunk(2)[me.rank // 2]).backward()
            for each in (whole, model):
                torch.optim.SGD(each.parameters(), lr=0.1).step()
            wanted = whole.state_dict()
            for name, value in model.state_dict().items():
                close(value, wanted[name.replace("inner.", "")], 1e-9, name)


def test_blocks_that_a_script_recomputes(ranks):
    ranks(recomputed, world=4)


def over_the_mesh(me: Member) -> None:
    mesh = mesh_of(me, 2, 2)
    for mode in ("NO_SHARD", "FULL_SHARD"):
        model = net()
        parallelize_module(
            model, mesh["tp"], {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
        )
        described = describe_once(model, tokens(0, 2))
        osdp.fully_shard(model, osdp.Plan.uniform(described, mode), device_mesh=mesh["dp"])
        whole = net()
        batch, targets = tokens(0, 4), tokens(50, 4)
        loss(whole(batch), targets).backward()
        with loss_parallel():
            out = model(batch.chunk(2)[me.rank // 2])
            assert isinstance(out, DTensor)
            loss(out, targets.chunk(2)[me.rank // 2]).backward()
        for each in (whole, model):
            torch.optim.SGD(each.parameters(), lr=0.1).step()
        for name, value in model.state_dict().items():
            close(value, whole.state_dict()[name], 1e-9, f"{mode}: {name}")


def test_a_loss_over_the_mesh(ranks):
    ranks(over_the_mesh, world=4)


class Orthogonal(torch.optim.Optimizer):
    """Needs whole matrices, as Muon does."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.grad / p.grad.norm())


def whole_tensors(me: Member) -> None:
    pair = pair_of(me, "NO_SHARD")
    pair.backward(0)
    with pytest.raises(osdp.ShardingError, match="Orthogonal"):
        Orthogonal(pair.sharded.parameters()).step()
    with pytest.raises(osdp.ShardingError, match=r"'embed.weight'"):
        torch.nn.utils.parameters_to_vector(pair.sharded.parameters())
    # An infinity in one rank's part makes all ranks skip.
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    before = [p.detach().clone() for p in pair.sharded.parameters()]
    scaler.scale(torch.ones(()))
    if me.rank == 1:
        pair.sharded.get_parameter("blocks.0.up.weight").grad[0, 0] = torch.inf
    scaler.step(pair.optimizer)
    scaler.update()
    assert all(torch.equal(a, b) for a, b in zip(before, pair.sharded.parameters(), strict=True))


def test_what_needs_whole_tensors_is_refused_or_agrees(ranks):
    ranks(whole_tensors, world=4)


class Headed(Net):
    def loss_of(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.head.weight).square().mean()


def methods(me: Member) -> None:
    for mode in ("NO_SHARD", "FULL_SHARD"):
        with naming(mode):
            mesh = mesh_of(me, 2, 2)
            torch.manual_seed(7)
            model = parallelized(Headed().double(), mesh["tp"])
            osdp.fully_shard(
                model, osdp.Plan.uniform(describe_once(model, tokens(0, 2)), mode), device_mesh=mesh["dp"]
            )
            x = torch.ones(2, 8, dtype=torch.float64)
            with pytest.raises(osdp.ShardingError):
                model.loss_of(x)


def test_values_are_not_taken_for_this_ranks_part(ranks):
    ranks(methods, world=4)


def loaded(me: Member) -> None:
    mesh = mesh_of(me, 2, 2)
    with torch.device("meta"):
        model = parallelized(Net().double(), mesh["tp"])
    for part in (*model.blocks, model):
        osdp.fully_shard(part, mesh=mesh["dp"])
    model.to_empty(device="cpu")
    whole = net()
    model.load_state_dict(whole.state_dict())
    kept: list[Any] = []
    hook = model.blocks[0].up.register_forward_hook(lambda module, args, out: kept.append(module.weight))
    with torch.no_grad():
        close(model(tokens(0, 2)), whole(tokens(0, 2)), 1e-9, "output")
    hook.remove()
    with pytest.raises(RuntimeError, match=ungathered(r"blocks\.0\.up\.weight")):
        kept[0].to_local().sum()


def test_shapes_alone_are_sharded_then_loaded(ranks):
    ranks(loaded, world=4)
