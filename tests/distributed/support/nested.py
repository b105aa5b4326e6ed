"""A model whose parts are wrapped: blocks in blocks, a tied table, frozen parameters, a block that is skipped once."""

from __future__ import annotations

import torch
from harness import Member
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from support.pair import adamw, close

WIDTH = 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self, part=lambda module: module) -> None:
        super().__init__()
        self.table = nn.Embedding(10, WIDTH)
        self.blocks = nn.ModuleList(part(Block()) for _ in range(3))
        self.inner = part(nn.Sequential(Block(), part(Block())))
        self.head = nn.Linear(WIDTH, 10, bias=False)
        self.head.weight = self.table.weight
        self.blocks[0].up.bias.requires_grad_(False)

    def forward(self, tokens: Tensor, skip: bool = False) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks[1:] if skip else self.blocks:
            x = block(x)
        return self.head(self.inner(x))


def net(seed: int, part=lambda module: module) -> Net:
    torch.manual_seed(seed)
    return Net(part).double()


def train(
    me: Member, whole: nn.Module, model: nn.Module, steps: int = 3, optimizer=None, whole_optimizer=None
) -> None:
    """Losses, and parameters after some steps of both, in which a block is skipped once."""
    both = (
        (whole, whole_optimizer or adamw(whole.parameters())),
        (model, optimizer or adamw(model.parameters())),
    )
    torch.manual_seed(3)
    for step in range(steps):
        tokens = torch.randint(10, (2 * me.world, 4))
        losses = []
        for each, data in ((whole, tokens), (model, me.part(tokens))):
            loss = each(data, skip=step == 1).square().mean()
            loss.backward()
            losses.append(loss)
        close(me.mean(losses[1]), losses[0], 1e-9, f"loss of step {step}")
        for _, each in both:
            each.step()
            each.zero_grad()
    state, wanted = model.state_dict(), whole.state_dict()
    assert list(state) == list(wanted)
    for name in wanted:
        got = state[name].full_tensor() if isinstance(state[name], DTensor) else state[name]
        close(got, wanted[name], 1e-9, name)
