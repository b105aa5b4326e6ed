"""Trains a member of each family on real text under OSDP, FSDP2 and DDP: the same losses. A few minutes on two cores:

    torchrun --nproc-per-node 2 examples/train_families.py [--steps 100] [--only "W&S" BERT] [--text FILE]

N&D, W&S and I&C are the paper's families (narrow and deep, wide and shallow, widths that differ) as minGPTs, OPT and BERT
come from transformers' configs, all small. Each is trained from the same weights on the same characters in float64, so
that a difference of losses is rounding alone. OSDP trains under the limit, of eight, whose searched plan mixes modes most
evenly.
"""

from __future__ import annotations

import argparse
import copy

import torch
from families.members import CONTEXT, MEMBERS, Member, masked, repeated_layers
from gpt.console import say
from gpt.planning import search_mixture
from gpt.text import Text
from gpt.training import mean_over_ranks
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import osdp

ROWS = 4  # of each rank


def batch(text: Text, member: Member, step: int) -> tuple[Tensor, Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    characters, targets = text.batch(step, ROWS, CONTEXT, seed=0, rank=rank, world=world)
    if member.labels == "masked":
        generator = torch.Generator().manual_seed(step * world + rank)
        return masked(characters, len(text.alphabet), generator)
    return characters, targets if member.labels == "next" else characters


def fsdp2(model: nn.Module) -> nn.Module:
    for layer in repeated_layers(model):
        fully_shard(layer)
    return fully_shard(model)


def trained(model: nn.Module, text: Text, member: Member, steps: int) -> list[float]:
    """The mean loss over all ranks of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        loss = model(*batch(text, member, step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(mean_over_ranks(loss))
    return losses


def in_words(plan: osdp.Plan) -> str:
    """How many operators are in which mode."""
    kinds = [c.mode if c.granularity == 1 else "in slices" for c in plan.choices.values()]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=MEMBERS, default=list(MEMBERS))
    parser.add_argument("--text", default="", help="a file; default: Python's standard library")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    text = Text(arguments.text)
    say(
        f"{text.source}, {arguments.steps} steps, {dist.get_world_size()} ranks of {ROWS} x {CONTEXT} characters\n"
    )
    heads = ("", "layers x width", "parameters", "first loss", "OSDP", "FSDP2", "DDP", "most apart", "plan")
    row = "{:5} {:18} {:>10} {:>11} {:>10} {:>10} {:>10} {:>11}  {}"
    say(row.format(*heads))
    for name in arguments.only:
        member = MEMBERS[name]
        torch.manual_seed(0)
        model = member.make(len(text.alphabet) + (member.labels == "masked")).double()
        sample = batch(text, member, 0)
        described = osdp.describe(model, *sample)
        plan = search_mixture(described, hardware=osdp.profile(model, *sample, seconds=1), batch_size=ROWS)
        wraps = {
            "OSDP": lambda model, plan=plan: osdp.fully_shard(model, plan),
            "FSDP2": fsdp2,
            "DDP": DistributedDataParallel,
        }
        losses = {}
        for what, wrap in wraps.items():
            losses[what] = trained(wrap(copy.deepcopy(model)), text, member, arguments.steps)
        apart = max(max(at) - min(at) for at in zip(*losses.values(), strict=True))
        parameters = sum(p.numel() for p in model.parameters())
        last = [f"{losses[what][-1]:.6f}" for what in wraps]
        first = f"{losses['DDP'][0]:.6f}"
        say(row.format(name, member.shape, f"{parameters:,}", first, *last, f"{apart:.1e}", in_words(plan)))
        if not apart < 1e-6:
            raise SystemExit(f"{name}: the losses of a step are {apart:.1e} apart")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
