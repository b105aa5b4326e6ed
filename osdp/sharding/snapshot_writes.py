"""Tells of writes into a full state dict, which change nothing in the model.

Note [Writes into a snapshot]
In one process a state dict shares memory with the model, and scripts use that: `average.state_dict()[name].copy_(...)`, as
timm's and YOLO's moving averages do, or values that are copied from a file one by one. A full state dict of a sharded
model is a snapshot (Note [A full state dict is a snapshot]), and such a write was lost without a word. So the version
counters of its entries are kept, without their memory, and compared when the next state dict is taken, and whenever the
module tree is looked at (the first forwards, and every 100th). A script may write into a state dict to save that, so this
is a warning, once for each model; and whoever loads a state dict afterwards knows.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn

from osdp.base.warned import warn
from osdp.sharding.sharded_model import Sharded

# The entries of each model's last state dict: key, a tensor without elements with the same version counter, its version.
_given: WeakKeyDictionary[Sharded, list[tuple[str, Tensor, int]]] = WeakKeyDictionary()
_told: WeakSet[Sharded] = WeakSet()


def note_given(sharded: Sharded, state: Any, copies: set[int]) -> None:
    """`copies`: the ids of the tensors that are copies of the model's."""
    if sharded in _told:
        return
    counted = [
        (key, _counter(t))
        for key, t in state.items()
        if id(t) in copies and not t.is_meta and not t.is_inference()
    ]
    _given[sharded] = [(key, counter, counter._version) for key, counter in counted]


def _counter(tensor: Tensor) -> Tensor:
    counter = tensor.detach()
    counter.data = tensor.data.new_empty(0)
    return counter


def forget_given() -> None:
    _given.clear()


def tell_of_writes(model: nn.Module, sharded: Sharded) -> None:
    written = [key for key, counter, version in _given.pop(sharded, ()) if counter._version != version]
    if not written:
        return
    _told.add(sharded)
    more = f" and {len(written) - 1} more entries" if len(written) > 1 else ""
    warn(
        f"OSDP, {sharded.runtime.rank_name}: {written[0]!r}{more} of a state dict of the sharded {type(model).__name__} "
        "were written to, which changes the state dict alone: its entries are copies, not the model's parameters. To "
        "change the model, call load_state_dict with it, or write to model.parameters() (a moving average: "
        "torch.optim.swa_utils.AveragedModel, or zip(average.parameters(), model.parameters())). If it was only written "
        "to be saved, nothing is wrong."
    )
