"""One wrap around the whole model.

torchrun --nproc-per-node 2 examples/drop_in/bare.py
"""

from __future__ import annotations

import torch
from small_gpt import GPT, batch, device_of_rank, loss_of, show
from torch import distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main() -> None:
    device = device_of_rank()
    torch.manual_seed(1)
    model = FSDP(GPT(), device_id=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(10):
        tokens, targets = batch(step, device)
        loss = loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        show(step, loss)

    model.eval()
    with torch.no_grad():
        tokens, targets = batch(1000, device)
        show(1000, loss_of(model(tokens), targets))
    state = model.state_dict()
    if dist.get_rank() == 0:
        GPT().load_state_dict({name: value.cpu() for name, value in state.items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
