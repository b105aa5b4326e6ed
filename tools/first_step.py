"""One training step of a sharded model on two ranks, as a newcomer runs it after `pip install osdp` and nothing else.

    python -m torch.distributed.run --standalone --nproc-per-node 2 tools/first_step.py FOLDER

Plans, shards, trains, saves to FOLDER and loads: it touches all that needs the extension, torch's collectives and files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

import osdp


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, x = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)), torch.randn(4, 64)
    osdp.fully_shard(model, osdp.search(model, (x,), memory="1GiB", world_size=world, method="exact"))
    sharded = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    osdp.fully_shard(sharded, osdp.Plan.uniform(osdp.describe(sharded, x), "FULL_SHARD"))
    for each in (model, sharded):
        optimizer = torch.optim.AdamW(each.parameters())
        before = {name: value.clone() for name, value in each.state_dict().items()}
        each(x).square().mean().backward()
        osdp.clip_grad_norm_(each, 1.0)
        optimizer.step()
        osdp.save(each, optimizer, folder / "checkpoint")
        osdp.load(each, optimizer, folder / "checkpoint")
        after = each.state_dict()
        if any(torch.equal(before[name], after[name]) for name in before):
            raise SystemExit("a step changed nothing")
    dist.barrier()
    if rank == 0:
        print(
            f"osdp {osdp.__version__} from {Path(osdp.__file__).parent}: a step on {world} ranks, torch {torch.__version__}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
