"""AsItWas: a model before something that may fail changes it, to put it back.

Note [All or nothing]
fully_shard changes modules, parameters and buffers in many steps; in some of them a user's code takes part
(reset_parameters, param_init_fn), in others the other ranks do. Where one fails on some rank, every rank puts its model
back: parameters' data and gradients, buffers, classes, hooks, forwards, attributes. That only assigns, and copies small
buffers. So full values live until all steps are done on all ranks, and what rank 0 sends arrives in memory of its own: a
rank needs its full model, its rows, and one more full parameter meanwhile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from osdp import _C


class AsItWas:
    def __init__(self, model: nn.Module) -> None:
        self._modules = [(m, type(m), dict(vars(m)), _containers(m)) for m in model.modules()]
        parameters = list(model.parameters())
        self._parameters = [(p, p.data, p.grad, p.requires_grad, dict(vars(p))) for p in parameters]
        self._buffers = [(b, b.detach().clone()) for b in model.buffers() if not b.is_meta]
        self._room = torch.empty(0)
        self.runtime: _C.Runtime | None = None  # once there is one; cycles may keep it after put_back
        self._received: dict[int, tuple[Tensor, Tensor]] = {}  # whole parameters' data and values

    def make_room(self, rank: int) -> None:
        """For what `share_values` receives. After the parameters were cut."""
        if rank == 0:
            return
        cut = [full for p, full, *_ in self._parameters if p.data_ptr() != full.data_ptr()]
        largest = max((full.nbytes for full in cut), default=0)
        device = self._parameters[0][1].device
        self._room = torch.empty(largest, dtype=torch.uint8, device=device)
        whole = [full for p, full, *_ in self._parameters if p.data_ptr() == full.data_ptr()]
        self._received = {id(full): (full, torch.empty_like(full)) for full in whole}

    def share_values(self, runtime: _C.Runtime, collectives: _C.Collectives) -> None:
        """Gives every rank rank 0's values. Collective."""
        with torch.no_grad():
            for i, (parameter, full, *_) in enumerate(self._parameters):
                if runtime.rank == 0:
                    collectives.broadcast([full])
                elif id(full) in self._received:
                    collectives.broadcast([self._received[id(full)][1]])
                else:
                    value = self._room[: full.nbytes].view(full.dtype).view(full.shape)
                    collectives.broadcast([value])
                    parameter.copy_(runtime.take_local(i, value))
            collectives.broadcast([buffer for buffer, _ in self._buffers])

    def let_go(self) -> None:
        """Nothing will fail any more."""
        self.runtime = None
        with torch.no_grad():
            for whole, value in self._received.values():
                whole.copy_(value)

    def put_back(self) -> None:
        if self.runtime is not None:
            self.runtime.uninstall()
        for module, kind, attributes, containers in self._modules:
            module.__class__ = kind
            vars(module).clear()
            vars(module).update(attributes)
            for container, held in containers:
                container.clear()
                if isinstance(container, list):
                    container.extend(held)
                else:
                    container.update(held)
        with torch.no_grad():
            for parameter, data, gradient, requires_grad, attributes in self._parameters:
                parameter.grad = None
                parameter.data = data
                parameter.grad = gradient
                parameter.requires_grad_(requires_grad)
                vars(parameter).clear()
                vars(parameter).update(attributes)
            for buffer, value in self._buffers:
                buffer.copy_(value)


def _containers(module: nn.Module) -> list[tuple[Any, Any]]:
    """Of the module's attributes: its dictionaries of parameters, buffers and hooks, lists such as LSTM's of its weights;
    each with a copy of what it holds."""
    found = [value for value in vars(module).values() if isinstance(value, (dict, list, set))]
    return [(value, list(value) if isinstance(value, list) else value.copy()) for value in found]
