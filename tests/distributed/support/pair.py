"""Pair: the same model twice, whole in one process and sharded over the ranks, trained side by side.

Every rank computes the whole batch on its own copy of the whole model (that is the reference) and its part of
the batch on the sharded model; losses, gradients and parameters must then agree.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from harness import Member
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import osdp
from osdp.sharding.sharded_model import runtime_of
from support.workload import Batch, Workload

SEED = 7
MakePlan = Callable[[osdp.ModelDescription], osdp.Plan]
MakeOptimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]
_descriptions: dict[Any, osdp.ModelDescription] = {}


def adamw(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


def unused_optimizer(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)])


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Adds `what` to any error from inside, so that a failure of one of many configurations says which."""
    try:
        yield
    except BaseException as error:  # also what pytest.raises raises when nothing was
        error.add_note(f"in: {what}")
        raise


def close(got: torch.Tensor, wanted: torch.Tensor, tolerance: float, what: str) -> None:
    got, wanted = got.detach(), wanted.detach()
    alike = got.shape == wanted.shape and got.dtype == wanted.dtype and got.device == wanted.device
    if alike and torch.allclose(got, wanted, rtol=tolerance, atol=tolerance):
        return  # assert_close says more, and takes ten times as long
    torch.testing.assert_close(
        got, wanted, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}"
    )


def described_once(
    me: Member, workload: Workload, model: nn.Module, arguments: tuple[Any, ...], prepare: Any
) -> osdp.ModelDescription:
    """What `describe` says of the workload's model: asked once, by rank 0 where ranks have the same model, since most of a
    short test would be that."""
    shapes = tuple((a.shape, a.dtype) if isinstance(a, torch.Tensor) else a for a in arguments)
    parameters = tuple((name, p.dtype, p.requires_grad) for name, p in model.named_parameters())
    state = (torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), model.training)
    key = (workload, prepare, parameters, state, repr(shapes))
    seen = me.everywhere((key in _descriptions, repr((model, parameters, state, shapes))))
    if not all(known for known, _ in seen):
        alike = all(told == seen[0][1] for _, told in seen)
        describe = functools.partial(osdp.describe, model, *arguments)
        _descriptions[key] = me.once(describe) if alike else describe()
    return _descriptions[key]


class Pair:
    def __init__(
        self,
        me: Member,
        workload: Workload,
        plan: osdp.Plan | MakePlan | str = "FULL_SHARD",
        *,
        dtype: torch.dtype = torch.float64,
        tolerance: float | None = None,
        optimizer: MakeOptimizer = adamw,
        prepare: Callable[[nn.Module], None] | None = None,
        samples: int = 2,
        **sharding: Any,
    ) -> None:
        """`samples`: per rank and micro-batch. `prepare` changes both models before sharding (to freeze). `sharding`: for
        `fully_shard`.
        """
        self.me, self.workload, self.dtype, self.samples = me, workload, dtype, samples
        self.tolerance = tolerance or (1e-9 if dtype == torch.float64 else 1e-5)
        self.whole = workload.model(SEED, dtype)
        model = workload.model(SEED + me.rank, dtype)  # rank 0's weights count
        for each in (self.whole, model):
            if prepare is not None:
                prepare(each)
        if not isinstance(plan, osdp.Plan):
            described = described_once(me, workload, model, self._part(self.data(0))[0], prepare)
            plan = osdp.Plan.uniform(described, plan) if isinstance(plan, str) else plan(described)
        if "device_mesh" not in sharding:
            sharding.setdefault("process_group", me.group)
        self.sharded = osdp.fully_shard(model, plan, **sharding)
        self.whole_optimizer = optimizer(self.whole.parameters())
        self.sharded_optimizer = optimizer(self.sharded.parameters())
        self.both = ((self.whole, self.whole_optimizer), (self.sharded, self.sharded_optimizer))

    def data(self, step: int, micro: int = 0) -> Batch:
        """The whole batch of a step: the same on every rank."""
        return self.workload.data(1000 + 10 * step + micro, self.samples * self.me.world, self.dtype)

    def _part(self, batch: Batch) -> Batch:
        arguments, target = batch
        mine = tuple(self.me.part(a) if isinstance(a, torch.Tensor) else a for a in arguments)
        return mine, self.me.part(target)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses (whole, this rank's), checked against each other."""
        arguments, target = batch
        whole = self.workload.loss(self.whole(*arguments), target)
        mine, my_target = self._part(batch)
        loss = self.workload.loss(self.sharded(*mine), my_target)
        close(self.me.mean(loss), whole, self.tolerance, "loss")
        return whole, loss

    def evaluate(self, step: int = 77) -> None:
        """Losses agree without gradients, in evaluation mode; training mode is restored."""
        self.whole.eval(), self.sharded.eval()
        with torch.no_grad():
            self.forward(self.data(step))
        self.whole.train(), self.sharded.train()

    def backward(self, batch: Batch, divide: int = 1, context: Any = None) -> None:
        whole, mine = self.forward(batch)
        (whole / divide).backward()
        with context or contextlib.nullcontext():
            (mine / divide).backward()

    def train(self, steps: int = 3, micros: int = 1, no_sync: bool = False) -> None:
        """Steps over `micros` micro-batches each; gradients are compared in each, parameters at the end."""
        for step in range(steps):
            with naming(f"step {step}"):
                for micro in range(micros):
                    last = micro == micros - 1
                    with osdp.no_sync(self.sharded) if no_sync and not last else contextlib.nullcontext():
                        self.backward(self.data(step, micro), divide=micros)
                self.same_gradients()
                self.update()
        self.same_parameters()

    def update(self, set_to_none: bool = True) -> None:
        for _, optimizer in self.both:
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)

    def same_gradients(self) -> None:
        """Every piece of a gradient that this rank holds is that piece of the whole one, or both are None."""
        runtime = runtime_of(self.sharded)
        wanted = dict(self.whole.named_parameters())
        for name, parameter in self.sharded.named_parameters():
            full = wanted[name].grad
            if full is None:
                assert parameter.grad is None, f"{name}: a gradient where one process has none"
                continue
            if parameter.numel() == 0:
                continue
            assert parameter.grad is not None, f"{name}: no gradient"
            assert parameter.grad.shape == parameter.shape, f"{name}: {parameter.grad.shape}"
            for piece in runtime.pieces(name):
                close(piece.view(parameter.grad), cut(piece, full), self.tolerance, f"gradient of {name}")

    def same_parameters(self) -> None:
        """The full state dicts agree: names, their order, shapes and values."""
        got, wanted = self.sharded.state_dict(), self.whole.state_dict()
        assert list(got) == list(wanted), f"names: {list(got)} instead of {list(wanted)}"
        for name, value in wanted.items():
            close(got[name], value, self.tolerance, name)


def cut(piece: Any, full: torch.Tensor) -> torch.Tensor:
    """The part of the full tensor that a piece of a sharded parameter stands for."""
    for dimension, (start, length) in enumerate(zip(piece.global_offsets, piece.sizes, strict=True)):
        full = full.narrow(dimension, start, length)
    return full


def train_all(me: Member, workload: Workload, plans: Callable[..., dict[str, Any]], **options: Any) -> None:
    """`Pair.train` for each of `plans(description)`; an error says which plan."""
    train_options = {k: options.pop(k) for k in ("steps", "micros", "no_sync") if k in options}
    model = workload.model(SEED, options.get("dtype", torch.float64))
    if options.get("prepare") is not None:
        options["prepare"](model)
    batch = workload.data(0, options.get("samples", 2), options.get("dtype", torch.float64))
    described = described_once(me, workload, model, batch[0], options.get("prepare"))
    for name, plan in plans(described).items():
        with naming(name):
            Pair(me, workload, plan, **options).train(**train_options)


def held(parameter: Tensor) -> Tensor:
    """What this rank has of a parameter: a DTensor's part, or the tensor itself."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
