"""Steps of a pipeline that are not alike, and buffers of its stages: losses, weights and buffers are one process's."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support.pair import close, naming
from test_parallelize import SAMPLES, Block, Net, batch, loss_of, net, plan_for
from torch import Tensor, nn

import osdp


class Counted(Block):
    """Keeps a mean of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.detach().mean(), 0.5)
        return super().forward(x, bias) * (1 + self.mean.detach().clone())


class Learning(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Counted() for _ in self.blocks)


def trains(me: Member) -> None:
    torch.manual_seed(0)
    model, whole = Learning().double(), Learning().double()
    whole.load_state_dict(model.state_dict())
    plan = me.once(lambda: plan_for(model, 1, 4, me.world, batch_size=SAMPLES))
    pipe = osdp.parallelize(model, plan, loss_of)
    optimizers = [torch.optim.SGD(p, lr=0.5) for p in (pipe.parameters(), whole.parameters())]
    for step, length in enumerate((5, 3, 6)):
        tokens, targets = (t[:, :length] for t in batch(step))
        found, wanted = pipe.step(tokens, target=targets), loss_of(whole(tokens), targets)
        torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-6, atol=0)
        wanted.backward()
        for optimizer in optimizers if step else ():  # the first two accumulate
            optimizer.step(), optimizer.zero_grad()
    all_of_it = whole.state_dict()
    for name, value in pipe.module.state_dict().items():
        close(value, all_of_it[name], 1e-12, name)


def test_sequences_of_other_lengths_and_buffers(ranks):
    ranks(trains, world=4)


def scaled(me: Member) -> None:
    """An infinity in the gradients of one stage; of another all parameters may be frozen."""
    plan = me.once(lambda: plan_for(net(), 1, 2, me.world))
    for frozen in (False, True):
        with naming(f"frozen: {frozen}"):
            model = net()
            for part in (model.token, model.position, model.blocks) if frozen else ():
                part.requires_grad_(False)
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            scaler.scale(torch.zeros(()))  # stages that compute no loss have a scale, too
            pipe = osdp.parallelize(model, plan, lambda out, to, by=scaler: by.scale(loss_of(out, to)))
            optimizer = torch.optim.SGD(pipe.parameters(), lr=0.5)
            before = [p.detach().clone() for p in pipe.parameters()]
            tokens, targets = (t.chunk(2)[pipe.mesh["dp"].get_local_rank()] for t in batch(0))
            pipe.step(tokens, target=targets)
            for p in pipe.parameters() if pipe.last else ():
                if p.grad is not None:
                    p.grad.fill_(torch.inf)
            scaler.step(optimizer), scaler.update()
            assert scaler.get_scale() == 4.0
            assert all(torch.equal(a, b) for a, b in zip(before, pipe.parameters(), strict=True))


@pytest.mark.outcome(
    "`torch.amp.GradScaler` in a pipeline of `osdp.parallelize`, an infinity in one stage: no stage steps",
    "equal",
)
def test_an_infinity_in_one_stage_skips_the_step_in_all(ranks):
    ranks(scaled, world=4)


class Turned(Block):
    def forward(self, x: Tensor, bias: Tensor | None = None, turn: tuple[Tensor, ...] = ()) -> Tensor:
        return super().forward(x * turn[0] + turn[1], bias)


class Turning(Net):
    """Blocks get a tuple of tensors, as rotations of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Turned() for _ in self.blocks)

    def forward(self, tokens: Tensor) -> Tensor:
        x, place = self.embedded(tokens), torch.arange(tokens.shape[1]).double()[:, None]
        turn = torch.cos(place), torch.sin(place)
        for block in self.blocks:
            x = block(x, turn=turn)
        return self.head(self.norm(x))


def compiled(me: Member) -> None:
    """torch.compile of each block, before the model is divided or after."""
    for before in (True, False):
        with naming(f"{before=}"):
            torch.manual_seed(0)
            model, whole = Turning().double(), Turning().double()
            whole.load_state_dict(model.state_dict())
            plan = me.once(lambda m=model: plan_for(m, 1, 2, me.world, batch_size=2))
            if before:
                compile_blocks(model)
            pipe = osdp.parallelize(model, plan, loss_of)
            if not before:
                compile_blocks(model)
            replica = pipe.mesh["dp"].get_local_rank()
            for step in range(2):
                tokens, targets = batch(step)
                mine = slice(replica * SAMPLES // 2, (replica + 1) * SAMPLES // 2)
                found = pipe.step(tokens[mine], target=targets[mine])
                wanted = loss_of(whole(tokens), targets)
                torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-6, atol=0)
                wanted.backward()
                for each in (pipe.module, whole):
                    torch.optim.SGD(each.parameters(), lr=0.5).step(), each.zero_grad()
            all_of_it = whole.state_dict()
            for name, value in pipe.module.state_dict().items():
                close(value, all_of_it[name], 1e-9, name)


def compile_blocks(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Turned):
            module.compile(backend="aot_eager")


def test_compiled_blocks(ranks):
    ranks(compiled, world=4)
