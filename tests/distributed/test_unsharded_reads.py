"""What a script reads of a module after unshard(): FSDP2's full values, until something needs this rank's rows."""

from __future__ import annotations

import copy

import pytest
import torch
from harness import Member
from support.descriptions import describe_once
from support.nested import net, train
from support.pair import SEED, close, held
from test_fsdp_module import full_gradients, sharded_by
from test_units_on_request import WIDTH, Counted, inputs, layers, micro_batch
from torch import nn
from torch.distributed import fsdp as torchs
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import osdp
from osdp.fsdp.fsdp_module import as_fsdp_module
from osdp.sharding.sharded_model import runtime_of

ROWS = (WIDTH // 2, WIDTH)


def both(me: Member) -> list[tuple[nn.Module, torch.optim.Optimizer]]:
    return [
        (model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in (layers(me), layers(me, torchs))
    ]


def full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """FSDP2 shows DTensors, and so do sharded state dicts here."""
    return {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in model.state_dict().items()}


def as_theirs(ours: nn.Module, theirs: nn.Module) -> None:
    for name, want in full_state(theirs).items():
        close(full_state(ours)[name], want, 1e-12, name)


def read(me: Member) -> None:
    """By wait() of a handle or at once, before the first forward and after steps, once or twice, in any mode of autograd."""
    made = both(me)
    ours, theirs = (model for model, _ in made)
    for step in range(3):
        for waits in (False, True):
            for model, _ in made:
                if waits:
                    handle = model[1].unshard(async_op=True)
                    if model is ours:
                        assert held(ours[1].weight).shape == ROWS, "before wait()"
                    handle.wait(), handle.wait()
                else:
                    model[1].unshard(), model[1].unshard()
            for name in ("weight", "bias"):
                close(getattr(ours[1], name).detach(), getattr(theirs[1], name).detach(), 1e-12, name)
            assert ours[1].weight is dict(ours.named_parameters())["1.weight"] and ours[1].weight.is_leaf
            assert held(ours[0].weight).shape == ROWS, "only what was asked for"
            for model, _ in made:
                model[1].reshard(), model[1].reshard()
            assert held(ours[1].weight).shape == ROWS and runtime_of(ours).gathered_bytes() == 0
        with torch.inference_mode():
            ours[2].unshard()
            assert held(ours[2].weight).shape == (WIDTH, WIDTH)
        for model, optimizer in made:
            model[0].unshard()
            micro_batch(model, inputs(me, step))
            optimizer.step(), optimizer.zero_grad()
        assert held(ours[0].weight).shape == ROWS and held(ours[2].weight).shape == ROWS
        as_theirs(ours, theirs)


@pytest.mark.outcome("reading the parameters of a module after its `unshard()`", "equal")
def test_full_values_are_read_after_unshard(ranks):
    ranks(read, world=2)


def between(me: Member) -> None:
    """Each thing that needs the rows finds them, and a pass that follows needs no other gather."""
    ours, theirs = layers(me), layers(me, torchs)
    made = [(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in (ours, theirs)]
    micro_batch(ours, inputs(me, 9)), micro_batch(theirs, inputs(me, 9))

    def shown() -> None:
        for layer in ours:
            layer.unshard()
            assert held(layer.weight).shape == (WIDTH, WIDTH)

    shown()
    norms = [torch.nn.utils.clip_grad_norm_(ours.parameters(), 0.1).full_tensor()]
    norms.append(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1).full_tensor())
    close(norms[0], norms[1], 1e-12, "norm")
    shown()
    ours.zero_grad(), theirs.zero_grad()  # what was shown is gone with the rows' gradients
    count = Counted(ours)
    micro_batch(ours, inputs(me, 1)), micro_batch(theirs, inputs(me, 1))
    assert count.since()[0] <= 3, "nothing that is there is gathered for the forward"
    shown()
    for _, optimizer in made:
        optimizer.step()
    assert held(ours[0].weight).shape == ROWS
    shown()
    as_theirs(ours, theirs)
    assert held(ours[0].weight).shape == ROWS
    shown()
    ours.load_state_dict({name: value * 2 for name, value in ours.state_dict().items()})
    theirs.load_state_dict({name: value * 2 for name, value in theirs.state_dict().items()})
    shown()
    as_theirs(ours, theirs)
    full = full_state(ours)
    shown()
    made_of_it = copy.deepcopy(ours)
    shown()
    with osdp.summon_full_params(ours):
        close(ours[1].weight.detach(), full["1.weight"], 1e-12, "summoned")
    shown()
    close(full_state(made_of_it)["1.weight"], full["1.weight"], 1e-12, "copied")
    with torch.no_grad():
        ours[0].reshard()
        ours[0].weight.mul_(2)  # kept
        shown()
        close(ours[0].weight.detach(), 2 * full["0.weight"], 1e-12, "written rows")
    frozen_steps = torch.optim.AdamW(ours.parameters(), lr=0.1, fused=True)  # it increments no versions
    ours[0].requires_grad_(False)
    shown()
    before = ours[0].weight.detach().clone()
    frozen_steps.step()  # of the gradients from before: torch's optimizers do not look at requires_grad
    shown()
    assert not torch.equal(ours[0].weight.detach(), before)
    ours.zero_grad()
    frozen_steps.step()
    assert held(ours[0].weight).shape == (WIDTH, WIDTH) and held(ours[1].weight).shape == ROWS, (
        "frozen ones do not change"
    )
    ours.to("cpu")
    assert held(ours[0].weight).shape == ROWS
    shown()
    wrapped = osdp.FullyShardedDataParallel(nn.Sequential(ours), process_group=me.group)
    assert held(ours[1].weight).shape == ROWS and len(full_state(wrapped)) == 6


def test_what_needs_the_rows_finds_them(ranks):
    ranks(between, world=2)


def saved(me: Member, directory: str) -> None:
    model = layers(me)
    wanted = full_state(model)
    model[1].unshard()
    osdp.save(model, None, directory)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    model[1].unshard()
    osdp.load(model, None, directory)
    for name, value in full_state(model).items():
        close(value, wanted[name], 1e-12, name)


def test_checkpoints_after_unshard(ranks, tmp_path):
    ranks(saved, str(tmp_path / "there"), world=2)


def written(me: Member) -> None:
    """FSDP2 forgets what is written to the full values at reshard(); here that is said, and training goes on as there."""
    (ours, optimizer), (theirs, other) = both(me)
    ways = {
        "reshard": lambda: ours[1].reshard(),
        "call": lambda: ours(inputs(me, 1)),
        "a part's call": lambda: ours[0](inputs(me, 1)),
        "step": lambda: optimizer.step(),
        "unshard": lambda: ours[1].unshard(),
        "state dict": lambda: ours.state_dict(),
        "load": lambda: ours.load_state_dict(full),
        "copy": lambda: copy.deepcopy(ours),
        "summon": lambda: osdp.summon_full_params(ours).__enter__(),
        "backward": lambda: loss.backward(),
    }
    for model in (ours, theirs):
        micro_batch(model, inputs(me, 9))
    full = full_state(ours)
    for name, way in ways.items():
        loss = ours(inputs(me, 9)).square().mean()
        for model in (ours, theirs):
            model[1].unshard()
            with torch.no_grad():
                model[1].weight.mul_(3)
        with pytest.raises(osdp.ShardingError, match=r"'1\.weight' .* unshard\(\)"):
            way()
        assert held(ours[1].weight).shape == ROWS, name
        theirs[1].reshard()
    for each in (optimizer, other):
        each.zero_grad()
    as_theirs(ours, theirs)
    for step in range(2):
        for model, each in ((ours, optimizer), (theirs, other)):
            micro_batch(model, inputs(me, step))
            each.step(), each.zero_grad()
        as_theirs(ours, theirs)


@pytest.mark.outcome("writing to what `unshard()` shows, which FSDP2 forgets", osdp.ShardingError)
def test_a_write_that_would_be_lost(ranks):
    ranks(written, world=2)


def squared(layer: nn.Module) -> torch.Tensor:
    if isinstance(layer, osdp.FSDPModule):
        layer.unshard()
    return layer.weight.square().sum()


def in_the_loss(me: Member) -> None:
    """A term of the loss that reads a parameter after unshard(), before or after the forward: one process's gradients. (In
    the first order FSDP2 reads freed memory.)"""
    for read_first in (True, False):
        for stays in (True, False):
            torch.manual_seed(0)
            whole, ours = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).double(), layers(me)
            if stays:
                ours.set_reshard_after_forward(False)
            for seed in range(2):
                torch.manual_seed(seed)
                data = torch.randn(2 * me.world, WIDTH, dtype=torch.float64)
                for model, mine in ((whole, data), (ours, me.part(data))):
                    terms = [lambda m=model: squared(m[1]), lambda m=model, x=mine: m(x).square().mean()]
                    first, second = terms if read_first else reversed(terms)
                    (first() + second()).backward()
            found = full_gradients(ours)
            for name, parameter in whole.named_parameters():
                close(found[name], parameter.grad, 1e-12, name)


def test_a_term_of_the_loss_after_unshard(ranks):
    ranks(in_the_loss, world=2)


def raised(me: Member) -> None:
    """After an exception in between, rows are shown, and training goes on."""
    mesh = DeviceMesh.from_group(me.group, "cpu")
    model = sharded_by(osdp, net(SEED), mesh, True)
    plain = model.inner[1].forward
    for _ in range(2):
        for part in (*model.blocks, model.inner[1], model):
            part.unshard()
        assert held(model.blocks[0].up.weight).shape == (12, 6)
        model.inner[1].forward = lambda x: 1 / 0
        with pytest.raises(ZeroDivisionError):
            model(torch.zeros(2, 4, dtype=torch.int64))
        model.inner[1].forward = plain
        assert runtime_of(model).gathered_bytes() == 0 and held(model.blocks[0].up.weight).shape == (6, 6)
    for block in (*model.blocks, model.inner[0], model.inner[1]):
        block.calls.zero_()
    train(me, net(SEED), model)


def test_an_exception_after_unshard(ranks):
    ranks(raised, world=2)


def low_precision(me: Member) -> None:
    """What is gathered in low precision is read in it, as with FSDP2; the rows stay as they were."""
    mesh = DeviceMesh.from_group(me.group, "cpu")
    made = []
    for library in (osdp, torchs):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        policy = torchs.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for part in (*model, model):
            library.fully_shard(part, mesh=mesh, mp_policy=policy)
        made.append(model)
    for step in range(2):
        for model in made:
            model[0].unshard()
        got, want = (model[0].weight.detach() for model in made)
        assert got.dtype == want.dtype == torch.bfloat16 and torch.equal(got, want)
        for model in made:
            torch.manual_seed(step)
            model(me.part(torch.randn(2 * me.world, 4))).float().square().mean().backward()
        assert made[0][0].weight.dtype == torch.float32 and made[0][0].weight.grad.dtype == torch.float32
    found = full_gradients(made[0])
    for name, want in full_gradients(made[1]).items():
        close(found[name], want, 1e-2, name)


def test_reads_in_low_precision(ranks):
    ranks(low_precision, world=2)


def slices(me: Member) -> None:
    """A weight that is computed in slices has no full value to show: said by its name."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    plan = osdp.Plan.uniform(describe_once(model, torch.zeros(2, 4)), "FULL_SHARD")
    plan = plan.replace({"0": osdp.Choice("FULL_SHARD", granularity=2, sharded_slices=2, split="out")})
    osdp.fully_shard(model, plan, process_group=me.group)
    for part in model:
        as_fsdp_module(part)
    with pytest.warns(UserWarning, match=r"'0\.weight' is computed in slices"):
        model[0].unshard()
    model[1].unshard()
    assert held(model[1].weight).shape == (4, 8) and held(model[0].weight).shape == (4, 4)


def test_a_weight_in_slices_after_unshard(ranks):
    ranks(slices, world=2)
