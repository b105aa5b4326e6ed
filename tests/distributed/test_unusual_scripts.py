"""Training loops that are legal and unusual: each trains a whole model on a batch, and a sharded one on this rank's part."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from harness import Member
from support import plans
from support.pair import close, naming
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import osdp

PLANS = {"SHARD_GRAD_OP": "SHARD_GRAD_OP", "FULL_SHARD": lambda d: plans.uniform(d)["FULL_SHARD"]}
WIDTH, STEPS = 8, 3
Script = Callable[[nn.Module, list[Tensor]], None]


class Parts(nn.Module):
    """Called whole, or one part at a time; or layer by layer, by a generator."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, part: str = "all") -> Tensor | Iterator[Tensor]:
        if part == "each":
            return (layer(x) for layer in (self.first, self.last))
        h = x if part == "last" else self.first(x).tanh()
        return h if part == "first" else self.last(h)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    loss(model, x).backward()
    optimizer.step(), optimizer.zero_grad()


def lookahead(model: nn.Module, batches: list[Tensor]) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    slow = [p.detach().clone() for p in model.parameters()]
    for x in batches:
        stepped(model, optimizer, x)
        with torch.no_grad():
            for p, far in zip(model.parameters(), slow, strict=True):
                p.copy_(far.lerp_(p, 0.5))


def extragradient(model: nn.Module, batches: list[Tensor]) -> None:
    for x in batches:
        before = [p.detach().clone() for p in model.parameters()]
        for _ in range(2):
            loss(model, x).backward()
            with torch.no_grad():
                for p, start in zip(model.parameters(), before, strict=True):
                    p.copy_(start).sub_(p.grad, alpha=0.1)
            model.zero_grad()


def rolled_back(model: nn.Module, batches: list[Tensor]) -> None:
    optimizer = AdamW(model.parameters(), lr=0.1)
    for k, x in enumerate(batches):
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        stepped(model, optimizer, x)
        if k == 1:
            model.load_state_dict(before[0]), optimizer.load_state_dict(before[1])


def adversaries_in_one_model(model: nn.Module, batches: list[Tensor]) -> None:
    of_first, of_last = (AdamW(m.parameters(), lr=0.1) for m in (model.first, model.last))
    for x in batches:
        made = model(x, "first")
        (model(made.detach(), "last").square().mean() - model(x, "last").abs().mean()).backward()
        of_last.step(), model.zero_grad()
        model(made, "last").square().mean().backward()
        of_first.step(), model.zero_grad()


def generated(model: nn.Module, batches: list[Tensor]) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    for x in batches:
        sum(y.square().mean() for y in model(x, "each")).backward()
        optimizer.step(), optimizer.zero_grad()


def gradients_by_hand(model: nn.Module, batches: list[Tensor]) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    for x in batches:
        loss(model, x).backward()
        kept = [p.grad.clone() for p in model.parameters()]
        optimizer.zero_grad()
        loss(model, 2 * x).backward()
        for p, g in zip(model.parameters(), kept, strict=True):
            p.grad = 0.5 * p.grad + g
        optimizer.step(), optimizer.zero_grad()


def gradients_in_one_buffer(model: nn.Module, batches: list[Tensor]) -> None:
    sizes = [p.numel() for p in model.parameters()]
    for p, part in zip(
        model.parameters(), torch.zeros(sum(sizes), dtype=torch.float64).split(sizes), strict=True
    ):
        p.grad = part.view_as(p)
    optimizer = SGD(model.parameters(), lr=0.1)
    for x in batches:
        loss(model, x).backward()
        optimizer.step(), optimizer.zero_grad(set_to_none=False)


def in_another_thread(model: nn.Module, batches: list[Tensor]) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    for x in batches:
        thread = threading.Thread(target=loss(model, x).backward)
        thread.start(), thread.join()
        optimizer.step(), optimizer.zero_grad()


def offloaded_activations(model: nn.Module, batches: list[Tensor]) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    for x in batches:
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t),
            torch.inference_mode(),
        ):
            target = model(0.5 * x)
        with torch.autograd.graph.save_on_cpu():
            (model(x) - target.clone()).square().mean().backward()
        optimizer.step(), optimizer.zero_grad()


def scaled_by_a_hook(model: nn.Module, batches: list[Tensor]) -> None:
    handle = model.first.weight.register_hook(lambda g: 0.5 * g)
    model.last.register_full_backward_hook(lambda module, into, out: tuple(0.5 * g for g in into))
    optimizer = SGD(model.parameters(), lr=0.1)
    for x in batches:
        stepped(model, optimizer, x)
    handle.remove()


def outcome_of(me: Member, script: Script, plan: object) -> list[tuple[str, Tensor, Tensor]]:
    whole, model = Parts().double(), Parts().double()
    batches = [torch.randn(2 * me.world, WIDTH, dtype=torch.float64) for _ in range(STEPS)]
    described = osdp.describe(model, me.part(batches[0]))
    chosen = plan(described) if callable(plan) else osdp.Plan.uniform(described, plan)  # type: ignore[arg-type]
    osdp.fully_shard(model, chosen, me.group)
    script(whole, batches)
    script(model, [me.part(x) for x in batches])
    return [(name, full, whole.state_dict()[name]) for name, full in model.state_dict().items()]


def as_in_one_process(me: Member, script: Script) -> None:
    for name, plan in PLANS.items():
        with naming(name):
            torch.manual_seed(0)
            for key, got, wanted in outcome_of(me, script, plan):
                close(got, wanted, 1e-9, key)


ROWS: dict[str, Script] = {
    "Lookahead, weights averaged by hand": lookahead,
    "extragradient: steps undone by hand": extragradient,
    "a step undone by `load_state_dict` of model and optimizer": rolled_back,
    "parts of one model trained against each other, selected by an argument of forward": adversaries_in_one_model,
    "a forward that returns a generator": generated,
    "`p.grad = ...` combined from two backwards": gradients_by_hand,
    "gradients that are views of one buffer": gradients_in_one_buffer,
    "`loss.backward` in another thread": in_another_thread,
    "`save_on_cpu`, `saved_tensors_hooks`, targets made in `inference_mode`": offloaded_activations,
    "`p.register_hook`, `register_full_backward_hook` that scale a gradient": scaled_by_a_hook,
}


@pytest.mark.parametrize(
    "script", [pytest.param(s, id=s.__name__, marks=pytest.mark.outcome(w, "equal")) for w, s in ROWS.items()]
)
def test_unusual_scripts(ranks, script):
    ranks(as_in_one_process, script, world=2)


# --- what nothing tells from what is right


def own_normalised(model: nn.Module, batches: list[Tensor]) -> None:
    handle = model.first.weight.register_hook(lambda g: g / g.norm())
    optimizer = SGD(model.parameters(), lr=0.1)
    for x in batches:
        stepped(model, optimizer, x)
    handle.remove()


def parts_normalised(model: nn.Module, batches: list[Tensor]) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    for x in batches:
        loss(model, x).backward()
        for p in model.parameters():
            p.grad.div_(p.grad.norm())
        optimizer.step(), optimizer.zero_grad()


def rate_by_size(model: nn.Module, batches: list[Tensor]) -> None:
    optimizer = SGD([{"params": [p], "lr": 1 / p.numel()} for p in model.parameters()], lr=0.1)
    for x in batches:
        stepped(model, optimizer, x)


def not_told(me: Member, script: Script, whole_is_right: bool) -> None:
    for name in ("NO_SHARD", "FULL_SHARD"):
        with naming(name):
            torch.manual_seed(0)
            furthest = max(float((a - b).abs().max()) for _, a, b in outcome_of(me, script, name))
            assert (furthest < 1e-9) == (whole_is_right and name == "NO_SHARD")


@pytest.mark.outcome(
    "`p.register_hook` that is not linear (a norm of the gradient)",
    "not detected: autograd calls it with this rank's own gradient, before ranks average, as under DDP",
)
@pytest.mark.outcome(
    "`p.grad.norm()`, `p.norm()` of one parameter, by hand between steps",
    "not detected: these are plain tensors of this rank's rows; `torch.nn.utils.get_total_norm` is right",
)
@pytest.mark.outcome(
    "a learning rate computed from `p.numel()` or `p.shape`, after `fully_shard`",
    "not detected: between steps a parameter has the shape of this rank's rows; read shapes before",
)
@pytest.mark.parametrize(
    ("script", "whole_is_right"), [(own_normalised, False), (parts_normalised, True), (rate_by_size, True)]
)
def test_what_is_not_told(ranks, script, whole_is_right):
    ranks(not_told, script, whole_is_right, world=2)
