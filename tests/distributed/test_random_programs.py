"""Random models, trained by random scripts under random plans: whatever they do, the numbers are those of one process."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

import pytest
import torch
from harness import Member
from support import plans
from support.pair import Pair, close, naming
from support.random_nets import RandomNet
from support.refusals import Refusal
from support.workload import Workload, vectors
from support.worlds import worlds

import osdp

AT_ONCE = 4
PROGRAMS = int(os.environ.get("OSDP_PROGRAMS", AT_ONCE))  # on each number of ranks


class Script:
    """Draws what is done, alike on all ranks and for both models."""

    def __init__(self, me: Member, seed: int) -> None:
        self.dice = random.Random(seed)
        workload = Workload(lambda: RandomNet(seed), vectors(4, 3))
        self.hybrid = me.world == 4
        options = {"ranks_per_host": 2} if self.hybrid else {}
        self.pair = Pair(me, workload, self.plan, optimizer=self.optimizer, **options)
        self.micro = 0

    def plan(self, description: osdp.ModelDescription) -> osdp.Plan:
        plan = plans.mixture(description, self.dice.randrange(1000))
        if self.hybrid:
            whole = [
                name for name, c in plan.choices.items() if c.mode == "FULL_SHARD" and c.granularity == 1
            ]
            modes = ("HYBRID_SHARD", "FULL_SHARD_HPZ", "FULL_SHARD_HIERARCHICAL")
            chosen = {n: osdp.Choice(self.dice.choice(modes)) for n in whole if self.dice.random() < 0.7}
            plan = plans.apart(plan.replace(chosen))
        blocks = [b.name for b in description.blocks if self.dice.random() < 0.4]
        return plan.replace(recompute={name: self.dice.choice(("hold", "regather")) for name in blocks})

    def optimizer(self, parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-2)

    def run(self, steps: int = 4) -> None:
        for step in range(steps):
            with naming(f"step {step}"):
                if step > 0:
                    self.before()
                self.accumulate()
                self.pair.same_gradients()
                self.between()
                self.pair.update(set_to_none=self.dice.random() < 0.7)
        self.pair.same_parameters()

    def before(self) -> None:
        """What may happen before a step: a parameter is frozen or thawed, a pass fails."""
        if self.dice.random() < 0.3:
            name = self.dice.choice([name for name, _ in self.pair.whole.named_parameters()])
            for model, optimizer in self.pair.both:
                p = model.get_parameter(name)
                p.requires_grad_(name == "last.2.weight" or not p.requires_grad)
                p.grad = None
                if p.requires_grad and not any(p is q for q in optimizer.param_groups[0]["params"]):
                    optimizer.add_param_group({"params": [p]})
        if self.dice.random() < 0.3:
            where = self.dice.choice(("forward", "backward"))
            at = self.dice.randrange(len(self.pair.whole.program))
            arguments, target = self.batch()
            mine, my_target = self.pair._part((arguments, target))
            for model, x, y in ((self.pair.whole, arguments, target), (self.pair.sharded, mine, my_target)):
                model.refuses = (where, at)
                with naming(f"{where} refused at {at}"), contextlib.suppress(Refusal):
                    self.pair.workload.loss(model(*x), y).backward()
                model.refuses = None
                model.zero_grad()

    def accumulate(self) -> None:
        micros = self.dice.randint(1, 3)
        for i in range(micros):
            alone = i < micros - 1 and self.dice.random() < 0.4
            with osdp.no_sync(self.pair.sharded) if alone else contextlib.nullcontext():
                how = self.dice.choice(("plain", "plain", "two forwards", "twice", "evaluates"))
                with naming(f"{how}, no_sync {alone}"):
                    self.backward(how)

    def batch(self) -> tuple:
        self.micro += 1
        return self.pair.data(self.micro)

    def backward(self, how: str) -> None:
        """Gradients of the input are this rank's own: of the mean over its samples."""
        (x,), target = self.batch()
        x.requires_grad_(self.dice.random() < 0.5)
        pairs = [self.pair.forward(((x,), target))]
        if how == "two forwards":
            pairs.append(self.pair.forward(self.batch()))
        if how == "evaluates":
            self.pair.evaluate(self.micro)
        of_input = []
        for losses in zip(*pairs, strict=True):
            loss = sum(losses) / len(losses)
            loss.backward(retain_graph=how == "twice")
            if how == "twice":
                loss.backward()
            of_input.append(x.grad)
            x.grad = None
        wanted, mine = (None if g is None else self.pair.me.part(g) for g in of_input)
        if wanted is not None:
            close(mine, wanted * self.pair.me.world, self.pair.tolerance, "gradient of the input")

    def between(self) -> None:
        """What scripts do between backward and step."""
        whole, sharded = self.pair.whole, self.pair.sharded
        what = self.dice.choice(("nothing", "clip", "torch clip", "state dict", "summon"))
        with naming(what):
            if what == "clip":
                norms = (
                    torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.5),
                    osdp.clip_grad_norm_(sharded, 0.5),
                )
                close(norms[1], norms[0], self.pair.tolerance, "norm")
            elif what == "torch clip":
                norms = tuple(torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5) for m in (whole, sharded))
                close(norms[1], norms[0], self.pair.tolerance, "norm")
            elif what == "state dict":
                sharded.load_state_dict(sharded.state_dict())
            elif what == "summon":
                wanted = dict(whole.named_parameters())
                with osdp.summon_full_params(sharded):
                    for name, p in sharded.named_parameters():
                        close(p, wanted[name], self.pair.tolerance, name)


def run_programs(me: Member, seeds: list[int]) -> None:
    for seed in seeds:
        with naming(f"program {seed}"):
            Script(me, seed).run()


@pytest.mark.parametrize("first", range(0, PROGRAMS, AT_ONCE))
@pytest.mark.parametrize("world", worlds(3, 4, more=(2,)))  # 4: with HYBRID_SHARD, on two hosts
def test_random_programs(ranks, world, first):
    """More of them: OSDP_PROGRAMS=1000 pytest tests/distributed/test_random_programs.py"""
    ranks(run_programs, [10_000 * world + first + i for i in range(AT_ONCE)], world=world)
