"""AsItWas: the state of a model before a change that may fail, to restore it.

Note [All or nothing]
fully_shard changes modules, parameters and buffers in many steps; some run user code (reset_parameters,
param_init_fn), others communicate. If a step fails on some rank, every rank restores its model: parameters'
data and gradients, buffers, classes, hooks, forwards, attributes. Restoring only assigns references, and
copies small buffers. So full values live until all steps are done on all ranks, and values from rank 0 are
received in separate memory: meanwhile a rank needs memory for its full model, its rows, and one more full
parameter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from osdp import _C
from osdp.sharding.shared_memory import elements_overlap


class ModulesAsTheyWere:
    """Classes, attributes, hooks and forwards of a model's modules; tensors are not looked at."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(m, type(m), dict(vars(m)), _containers(m)) for m in model.modules()]

    def put_back(self) -> None:
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


class AsItWas:
    def __init__(self, model: nn.Module) -> None:
        self._modules = ModulesAsTheyWere(model)
        parameters = list(model.parameters())
        self._parameters = [(p, p.data, p.grad, p.requires_grad, dict(vars(p))) for p in parameters]
        self._buffers = [(b, b.detach().clone()) for b in model.buffers() if not b.is_meta]
        self._room = torch.empty(0)
        self.runtime: _C.Runtime | None = None  # cycles may keep it alive after put_back
        self._received: dict[int, tuple[Tensor, Tensor]] = {}  # whole parameters: data, values

    def make_room(self, rank: int) -> None:
        """Allocate memory for the values that `share_values` receives. Called after the parameters were
        sharded."""
        if rank == 0:
            return
        cut = [full for p, full, *_ in self._parameters if p.data_ptr() != full.data_ptr()]
        largest = max((full.nbytes for full in cut), default=0)
        device = self._parameters[0][1].device
        self._room = torch.empty(largest, dtype=torch.uint8, device=device)
        whole = [full for p, full, *_ in self._parameters if p.data_ptr() == full.data_ptr()]
        self._received = {id(full): (full, torch.empty_like(full)) for full in whole}

    def share_values(self, runtime: _C.Runtime, collectives: _C.Collectives) -> None:
        """Send rank 0's values to every rank. Collective."""
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

    def former_data(self, named: dict[str, nn.Parameter]) -> list[tuple[str, nn.Parameter, Tensor]]:
        """Names, parameters and the data that they had."""
        data = {id(p): full for p, full, *_ in self._parameters}
        return [(name, p, data[id(p)]) for name, p in named.items() if id(p) in data]

    def let_go(self) -> None:
        """Release the saved state: no step can fail any more."""
        self.runtime = None
        with torch.no_grad():
            for whole, value in self._received.values():
                whole.copy_(value)

    def put_back(self) -> None:
        if self.runtime is not None:
            self.runtime.uninstall()
        self._modules.put_back()
        with torch.no_grad():
            for parameter, data, gradient, requires_grad, attributes in self._parameters:
                parameter.grad = None
                parameter.data = data
                parameter.grad = gradient
                if parameter.requires_grad != requires_grad:  # a lazy module's has no such method
                    parameter.requires_grad_(requires_grad)
                vars(parameter).clear()
                vars(parameter).update(attributes)
            for buffer, value in self._buffers:
                if not (elements_overlap(buffer) or buffer.is_inference()):  # refused, so it is as it was
                    buffer.copy_(value)


def _containers(module: nn.Module) -> list[tuple[Any, Any]]:
    """The containers among the module's attributes (dictionaries of parameters, buffers and hooks, lists such
    as an LSTM's weights), each with a copy of its contents."""
    found = [value for value in vars(module).values() if isinstance(value, (dict, list, set))]
    return [(value, list(value) if isinstance(value, list) else value.copy()) for value in found]
