"""Parameters that a model gets after fully_shard (a new head, adapters) are added to the runtime, or refused
by name.

Note [A module tree that changes]
The gradient of a parameter that the runtime does not know is not averaged, so ranks would diverge. torch
reports registrations (`model.head = nn.Linear(...)`, register_parameter, add_module) through global hooks,
and ours count them (csrc/bindings/runtime.cpp). If the count has changed, the next outermost call first
compares the module tree with the recorded one. New parameters are added as in fully_shard: all ranks must
have added the same ones, rank 0's values are used, and the runtime holds them as NO_SHARD: in full on every
rank, which the plan does not account for. State dicts, save and load compare too. A step in which nothing was
registered compares two numbers.
  Direct writes are not reported (`module._parameters[name] = p`; ModuleList.insert of an existing module).
  They are noticed in the model's first forwards, in every 100th, and by state dicts and save. By then ranks
  may have trained the parameter separately, so this is an error. So is a parameter created within a forward,
  which has used this rank's own values.
  Buffers remain local after fully_shard, as in FSDP, so those created within a forward (caches) are left
  alone, and so is a new tensor under a known name. A buffer with a new name that was registered between steps
  gets rank 0's values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.utils.parametrize import ParametrizationList

from osdp import _C
from osdp.base.modules import is_compiled
from osdp.base.names import joined
from osdp.base.tensor_parallel import layout_of
from osdp.base.warned import warn
from osdp.errors import DisagreementError, ShardingError
from osdp.plan.mixed_precision import parameter_dtypes
from osdp.ranks.rank_group import Together
from osdp.sharding.compile_hooks import compiled_modules, install_call, outside
from osdp.sharding.consistency_check import first_difference, tensor_facts
from osdp.sharding.mixed_precision import cast_buffers
from osdp.sharding.module_changes import ModuleChanges
from osdp.sharding.nested_models import modules_in_parts
from osdp.sharding.sharded_model import Sharded, sharded_models, sliced_modules
from osdp.sharding.snapshot_writes import tell_of_writes
from osdp.sharding.state_dict import show_full_parameters

# The modules of sharded models at their last comparisons. In others only tensors count, since ModuleList.insert registers
# nothing: many forwards build a loss's module, and a comparison of some hundred modules takes longer than their calls.
_compared: WeakSet[nn.Module] = WeakSet()


def watch_registrations() -> list[Any]:
    """Installs torch's hooks; returns their handles."""
    disable: Any = torch.compiler.disable  # it runs within calls that may be compiled
    _C.watch_tree(disable(_look))
    return [
        register_module_parameter_registration_hook(_parameter_registered),
        register_module_module_registration_hook(_module_registered),
        register_module_buffer_registration_hook(_buffer_registered),
    ]


def _parameter_registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
    if type(module) is ParametrizationList and parameter is not None:
        _not_written(module, parameter)
    _C.count_registration(module, name, parameter)


def _not_written(parametrization: ParametrizationList, parameter: nn.Parameter) -> None:
    """torch has called Tensor.set_ of a parameter that gets a parametrization with itself. That counts as a write, which is
    refused in a forward, and autograd forgets our hooks. PEFT does so in every forward (`target_parameters`)."""
    if any(hasattr(each, "right_inverse") for each in parametrization) or parameter.is_inference():
        return
    for _, sharded in sharded_models():
        if sharded.runtime.in_pass and (index := sharded.tree.index.get(id(parameter))) is not None:
            sharded.runtime.keep_node(index)
            torch._C._autograd._unsafe_set_version_counter((parameter,), (parameter._version - 1,))


def _module_registered(module: nn.Module, name: str, registered: nn.Module | None) -> None:
    if module in _compared:
        _C.count_registration(module, name, registered)


def _buffer_registered(module: nn.Module, name: str, buffer: Tensor | None) -> None:
    new = name not in module._buffers  # else an existing buffer was replaced, as forwards do
    if new and (buffer is not None or module in _compared):
        _C.count_registration(module, name, buffer)


def _look(runtime: _C.Runtime, when: str) -> None:
    for model, sharded in sharded_models():
        if sharded.runtime is runtime:
            sharded.tree.look(model, when)


class Tree:
    """The parameters and buffers of a sharded model at the last comparison."""

    def __init__(self, model: nn.Module, sharded: Sharded, collectives: _C.Collectives) -> None:
        # Not its owner, which would then outlive the model by one collection of garbage, with all rows.
        self._sharded = ref(sharded)
        self.collectives = collectives
        self.known: list[nn.Parameter] = list(model.parameters())  # in the order of the runtime's indices
        self.index = {id(p): i for i, p in enumerate(self.known)}
        self.left_alone: list[nn.Parameter] = []  # in the model, but not in the runtime
        self.buffers: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
        # The modules in which sharded parameters were registered when the model was sharded: module -> {key:
        # parameter}.
        self.homes: WeakKeyDictionary[nn.Module, dict[str, nn.Parameter]] = WeakKeyDictionary()
        self._know_buffers(model)
        for module in model.modules():
            own = ((k, p) for k, p in module._parameters.items() if p is not None)
            self.homes[module] = {k: p for k, p in own if self.is_sharded(p)}
        # The calls of sliced modules hold the parameters themselves.
        self.sliced: WeakKeyDictionary[nn.Module, dict[str, nn.Parameter | None]] = WeakKeyDictionary()
        for places in sliced_modules(sharded.plan).values():
            for module in map(model.get_submodule, places):
                self.sliced[module] = dict(module._parameters)
        sharded.runtime.saw_tree()

    @property
    def sharded(self) -> Sharded:
        found = self._sharded()
        assert found is not None
        return found

    def is_sharded(self, parameter: Tensor) -> bool:
        """Whether this rank holds a part of the parameter only."""
        index = self.index.get(id(parameter))
        if index is None:
            return False
        layout = layout_of(parameter)
        if layout is not None and layout.divided:
            return True
        pieces = self.sharded.runtime.pieces(index)
        return len(pieces) > 1 or not pieces[0].replicated

    def leave_alone(self, model: nn.Module, parameters: list[nn.Parameter]) -> None:
        """Exclude these parameters, and all buffers that the model has now, from the runtime."""
        self.left_alone = parameters
        self._know_buffers(model)
        self.sharded.runtime.saw_tree()

    def has_lost(self, model: nn.Module) -> bool:
        """Whether a parameter was removed since the last comparison, which torch does not report."""
        changes = ModuleChanges.on(model)
        if changes.same_number_of_entries():
            return False
        changes.count_entries(model.modules())
        present = {id(p) for p in model.parameters()}
        return any(id(self.known[index]) not in present for index in self.sharded.index.values())

    def look_between_steps(self, model: nn.Module) -> None:
        """Compare before a state dict, a checkpoint or a norm. Collective if something was added."""
        runtime = self.sharded.runtime
        if not self.sharded.in_use:
            runtime.end_read_only()
            self.look(model, "registered" if runtime.tree_changed else "")

    def look(self, model: nn.Module, when: str) -> None:
        """Compare. `when`: "registered": something was registered since the last comparison, before a call;
        "forward": within the forward that has just ended; "": nothing was registered."""
        tell_of_writes(model, self.sharded)
        alone = {id(p) for p in self.left_alone} | {
            id(p) for module in modules_in_parts(model) for p in module._parameters.values()
        }
        found = {name: p for name, p in model.named_parameters() if id(p) not in alone}
        if not all(isinstance(p, nn.Parameter) for p in found.values()):
            return  # torch.func.functional_call has replaced them during a call
        new = {name: p for name, p in found.items() if id(p) not in self.index}
        if when == "forward":
            _refuse_within_forward(new)
            self._know_buffers(model)
            return
        buffers = {name: b for name, b in self._new_buffers(model) if b is not None}
        errors = [*self._reparametrised(model), *_unusable(new, self.sharded.device, told=when != "")]
        if new or buffers:
            self._agree({**new, **buffers}, errors)
        if errors:
            raise ShardingError(errors[0])
        changed = bool(new or buffers or self.sharded.runtime.tree_changed)
        with ModuleChanges.on(model).also(model) if changed else nullcontext():
            if new or buffers:
                self._take_in(model, new, buffers)
            show_full_parameters(model, self.sharded)
        here = {self.index[id(p)]: name for name, p in found.items()}
        self.sharded.index = {name: i for i, name in here.items()}
        self.sharded.runtime.set_absent(sorted(set(range(len(self.known))) - set(here)))
        self._know_buffers(model)
        self.sharded.runtime.saw_tree()

    def _new_buffers(self, model: nn.Module) -> Iterator[tuple[str, Tensor | None]]:
        apart = set(modules_in_parts(model))
        for prefix, module in model.named_modules():
            if module in apart:
                continue
            names = module._buffers.keys() - self.buffers.get(module, set())
            yield from ((joined(prefix, n), module._buffers[n]) for n in sorted(names))

    def _know_buffers(self, model: nn.Module) -> None:
        for module in model.modules():
            _compared.add(module)
            self.buffers.setdefault(module, set()).update(module._buffers)

    def _reparametrised(self, model: nn.Module) -> Iterator[str]:
        """Tensors that were computed from this rank's part of a parameter and have replaced it in its
        module."""
        for prefix, module in model.named_modules():
            for key, held in self.sliced.get(module, {}).items():
                if module._parameters.get(key) is not held:
                    yield (
                        f"{prefix!r} is computed in slices of its original parameters, and its {key} "
                        "was replaced: replace the module instead, or give the operator granularity "
                        "1 in the plan"
                    )
            for key, parameter in self.homes.get(module, {}).items():
                now = module._parameters.get(key)
                if now is parameter:
                    continue
                name, whole = joined(prefix, key), self._full_shape(parameter)
                if parameter.shape != whole and _made_of_a_part(module, key):
                    yield (
                        f"{name!r} was pruned, normalised or parametrised after fully_shard, when it "
                        f"was only this rank's part, {list(parameter.shape)} of {list(whole)}: do "
                        "this before fully_shard"
                    )
                elif now is not None and now.shape != whole and (other := self._sharded_name(now)):
                    yield (
                        f"{name!r} was tied to {other!r} after fully_shard, by whose plan each is gathered at its own "
                        "calls: tie them before fully_shard"
                    )
                elif now is not None and isinstance(now.data, DTensor):
                    yield _DIVIDED.format(name)
                elif now is not None and now.shape == parameter.shape != whole:
                    yield (
                        f"{name!r} was replaced by a parameter with the shape of this rank's part, "
                        f"{list(now.shape)}, but the full shape is {list(whole)}. Replace it with one "
                        "of the full shape, or before fully_shard"
                    )

    def _sharded_name(self, parameter: Tensor) -> str | None:
        if not self.is_sharded(parameter):
            return None
        return next((n for n, i in self.sharded.index.items() if i == self.index[id(parameter)]), "another")

    def _full_shape(self, parameter: nn.Parameter) -> torch.Size:
        return torch.Size(self.sharded.runtime.full_shape(self.index[id(parameter)]))

    def _agree(self, added: dict[str, Tensor], errors: list[str]) -> None:
        """Raises if ranks have added different tensors, or another one has an error. Collective."""
        together = Together(self.sharded.group)
        told = json.dumps({"parameter or buffer": {n: tensor_facts(t) for n, t in added.items()}, "": errors})
        digest = hashlib.sha256(told.encode()).digest()
        device = self.sharded.device
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(device)
        theirs = torch.empty(together.world_size * len(digest), dtype=torch.uint8, device=device)
        label = f"adopting {next(iter(added))!r}, added after fully_shard"
        self.collectives.all_gather([theirs], [mine], label)
        if bool((theirs.view(together.world_size, -1) == mine).all()):
            return
        everyone = [json.loads(text) for text in together.all(told)]
        if errors:
            return
        for rank, facts in enumerate(everyone):
            if facts[""]:
                raise ShardingError(f"{together.name(rank)}: {facts[''][0]}")
            if difference := first_difference(
                {**everyone[0], "": []}, {**facts, "": []}, "", together.name(0)
            ):
                raise DisagreementError(
                    f"{together.name(rank)} and {together.name(0)} added different things to the model after fully_shard: "
                    f"{difference}. Give every rank the same model"
                )

    def _take_in(self, model: nn.Module, new: dict[str, nn.Parameter], buffers: dict[str, Tensor]) -> None:
        sharded = self.sharded
        self.collectives.broadcast([t.detach() for t in [*new.values(), *buffers.values()]])
        if sharded.policy is not None:
            fresh = {id(b) for b in buffers.values()}
            for module, dtypes in cast_buffers(model, sharded.policy, fresh).items():
                sharded.buffer_dtypes.setdefault(module, {}).update(dtypes)
        if not new:
            return
        self.join(model, new)
        if sharded.runtime.rank == 0:
            more = f" and {len(new) - 1} more parameters were" if len(new) > 1 else " was"
            warn(
                f"OSDP: {next(iter(new))!r}{more} added after fully_shard: every rank holds all of it "
                "(NO_SHARD), which the plan does not account for. Add it before fully_shard to "
                "include it in the plan.",
            )

    def join(self, model: nn.Module, new: dict[str, nn.Parameter]) -> None:
        """Add parameters, equal on all ranks, that the plan does not have."""
        sharded = self.sharded
        dtypes = parameter_dtypes(model, sharded.policy)
        specs = [
            _C.ParamSpec(name, p, None, None, *dtypes.get(name, (None, None))) for name, p in new.items()
        ]
        label = f"{next(iter(new))} and other added parameters"
        sharded.runtime.join(label, specs)
        for p in new.values():
            self.index[id(p)] = len(self.known)
            self.known.append(p)
        _install_copies(model, sharded, {name: self.index[id(new[name])] for name in new if name in dtypes})


def _install_copies(model: nn.Module, sharded: Sharded, mixed: dict[str, int]) -> None:
    """Install hooks so that modules that are called directly make their low-precision copies; the model's
    call makes all copies."""
    compiled = [] if is_compiled(model) else compiled_modules(model)
    at: dict[str, list[int]] = {}
    for name, index in mixed.items():
        at.setdefault(outside(name.rpartition(".")[0], compiled), []).append(index)
    for place, params in at.items():
        if place:
            hook = sharded.runtime.add_call(place, params, False, False)
            install_call(model.get_submodule(place), hook)


def _made_of_a_part(module: nn.Module, key: str) -> bool:
    """Whether torch has reparametrized `key`: prune and spectral_norm register weight_orig, weight_norm
    registers weight_g, and parametrize keeps the parameter in a list, unless its right_inverse computes new
    ones."""
    if any(name.startswith(f"{key}_") for name in [*module._parameters, *module._buffers]):
        return True
    parametrizations: Any = module._modules.get("parametrizations")
    made = parametrizations[key] if parametrizations is not None and key in parametrizations else ()
    return any(hasattr(p, "right_inverse") for p in made)


_DIVIDED = (
    "{!r}, a DTensor, was added after fully_shard: divide a module by parallelize_module before fully_shard, or add a plain "
    "parameter"
)


def _unusable(new: dict[str, nn.Parameter], device: torch.device, told: bool) -> Iterator[str]:
    for name, parameter in new.items():
        if home := next((s for _, s in sharded_models() if s.tree.is_sharded(parameter)), None):
            yield (
                f"{name!r} was put into the model after fully_shard, but is "
                f"{home.name_of(home.tree.index[id(parameter)])!r} of another sharded model, of which this rank has a part: "
                "copy its values (load_state_dict of its module's state_dict()), or choose NO_SHARD there"
            )
        elif isinstance(parameter.data, DTensor):
            yield _DIVIDED.format(name)
        elif parameter.device != device:
            yield (
                f"{name!r} was added after fully_shard on {parameter.device}, but the model is on "
                f"{device}: move it there first"
            )
        elif parameter.grad is not None:
            yield (
                f"{name!r} was added after fully_shard and already has a gradient, which was not "
                "averaged over ranks: call the model, which adopts the parameter, before running "
                "backward, or set the gradient to None"
            )
        elif not told:
            yield (
                f"{name!r} was put into the model after fully_shard without being registered "
                "(module._parameters[...] = ..., ModuleList.insert), so each rank may have trained "
                "its own copy: use setattr, register_parameter or add_module, or add it before "
                "fully_shard"
            )


def _refuse_within_forward(new: dict[str, nn.Parameter]) -> None:
    if new:
        raise ShardingError(
            f"{next(iter(new))!r} was created during a forward, with values that differ between "
            "ranks: call the model once before fully_shard, so that all parameters exist"
        )
