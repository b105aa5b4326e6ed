"""Random models of what is computed in slices, under random plans of all modes and slices, with parts in host memory, and
random optimizers: the numbers are those of one process, also after a checkpoint into another plan."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Member
from support import plans
from support.blocks import surprise
from support.pair import Pair, close, naming
from support.random_layers import RandomLayers, batch
from support.workload import Workload
from support.worlds import worlds
from torch import nn

import osdp
from osdp.description.model_description import ModelDescription
from osdp.plan.choice import uneven
from osdp.sharding import cpu_offload as offload

AT_ONCE = 2
PROGRAMS = int(os.environ.get("OSDP_PROGRAMS", AT_ONCE))  # on each number of ranks
OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.5),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=1e-3),
}


def random_plan(description: ModelDescription, dice: random.Random, hosts: bool, offloads: bool) -> osdp.Plan:
    modes = ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"]
    if hosts:
        modes += ["HYBRID_SHARD", "FULL_SHARD_HPZ", "FULL_SHARD_HIERARCHICAL"]
    if offloads:
        modes += ["FULL_SHARD_OFFLOAD", *(["HYBRID_SHARD_OFFLOAD"] if hosts else [])]
    choices = {}
    for operator in plans.with_parameters(description):
        choice = osdp.Choice(dice.choice(modes))
        if operator.split_shape is not None and dice.random() < 0.6:
            split = "out" if operator.kernel_places else dice.choice(("out", "in"))
            length = operator.split_shape[0 if split == "out" else 1]
            numbers = plans.numbers_of_slices(length, may_be_uneven=uneven(operator, split), most=7)
            if numbers:
                g = dice.choice(numbers)
                away = offloads and dice.random() < 0.4
                mode, k = ("FULL_SHARD_OFFLOAD", g) if away else ("FULL_SHARD", dice.randint(0, g))
                choice = osdp.Choice(mode, granularity=g, sharded_slices=k, split=split)
        choices[operator.name] = choice
    plan = osdp.Plan.uniform(description, "FULL_SHARD").replace(choices)
    plan = plan if dice.random() < 0.4 else plans.apart(plan)
    blocks = [b.name for b in description.blocks if dice.random() < 0.4]
    return plan.replace(recompute={name: dice.choice(("hold", "regather")) for name in blocks})


class Script:
    """Draws what is done, alike on all ranks and for both models."""

    def __init__(self, me: Member, seed: int, directory: Path) -> None:
        self.me, self.seed, self.directory = me, seed, directory / str(seed)
        self.dice = dice = random.Random(seed)
        self.workload = Workload(lambda: RandomLayers(seed), batch, surprise)
        self.hosts = me.world == 4
        self.offloads = dice.random() < 0.5
        self.optimizer = dice.choice(list(OPTIMIZERS))
        self.samples = dice.choice((1, 2))
        self.micro = 0
        self.pair = self.made()

    def made(self) -> Pair:
        def make(parameters: Any) -> torch.optim.Optimizer:
            return OPTIMIZERS[self.optimizer]([p for p in parameters if p.requires_grad])

        plan = lambda d: random_plan(d, self.dice, self.hosts, self.offloads)  # noqa: E731
        options = {"ranks_per_host": 2} if self.hosts else {}
        if self.offloads and self.dice.random() < 0.3:
            options["cpu_offload"] = True
        return Pair(self.me, self.workload, plan, optimizer=make, samples=self.samples, **options)

    def run(self) -> None:
        for step in range(4):
            with naming(f"step {step}, {self.optimizer}"):
                if step == 2 and self.dice.random() < 0.7:
                    self.elsewhere()
                self.step()
        self.pair.same_parameters()

    def step(self) -> None:
        micros = self.dice.randint(1, 3)
        for i in range(micros):
            alone = i < micros - 1 and self.dice.random() < 0.4
            self.micro += 1
            with osdp.no_sync(self.pair.sharded) if alone else contextlib.nullcontext():
                losses = self.pair.forward(self.pair.data(self.micro))
                if self.dice.random() < 0.2:
                    self.pair.evaluate(self.micro)
                for loss in losses:
                    (loss / micros).backward()
        self.pair.same_gradients()
        whole, sharded = self.pair.whole, self.pair.sharded
        if self.dice.random() < 0.5:
            norms = (nn.utils.clip_grad_norm_(whole.parameters(), 0.2), osdp.clip_grad_norm_(sharded, 0.2))
            close(norms[1], norms[0], self.pair.tolerance, "norm")
            self.pair.same_gradients()
        self.pair.update(set_to_none=self.dice.random() < 0.7)
        self.pair.same_parameters()

    def elsewhere(self) -> None:
        """Goes on in another plan, from a checkpoint."""
        old = self.pair
        osdp.save(old.sharded, old.sharded_optimizer, self.directory, process_group=self.me.group)
        self.pair = new = self.made()
        osdp.load(new.sharded, new.sharded_optimizer, self.directory, process_group=self.me.group)
        new.whole, new.whole_optimizer = old.whole, old.whole_optimizer
        new.both = ((new.whole, new.whole_optimizer), (new.sharded, new.sharded_optimizer))
        with naming("loaded"):
            new.same_parameters()


def run_programs(me: Member, seeds: list[int], directory: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offload, "rests_apart", lambda wanted, device: wanted)
        for seed in seeds:
            with naming(f"program {seed}"):
                Script(me, seed, directory).run()


@pytest.mark.parametrize("first", range(0, PROGRAMS, AT_ONCE))
@pytest.mark.parametrize("world", worlds(3, 4, more=(2,)))  # 4: on two hosts
def test_random_layers(ranks, world, first, tmp_path):
    """More of them: OSDP_PROGRAMS=1000 pytest tests/distributed/test_random_layers.py"""
    ranks(run_programs, [10_000 * world + first + i for i in range(AT_ONCE)], tmp_path, world=world)
