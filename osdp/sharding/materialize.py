"""Placing: parameters are sharded one at a time if their full values are not on this rank, or not on the
training device.

Either rank 0 has values and the others only shapes (the meta device); or all ranks have only shapes, and
initialise; or all have values on a different device than the one they train on. In each case the runtime
first allocates memory for every rank's rows; then full values are created or received one after another,
sharded and freed.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from osdp import _C
from osdp.base.tensor_parallel import layout_of
from osdp.errors import DisagreementError, InvalidProblemError, ShardingError
from osdp.ranks.rank_group import Together
from osdp.sharding.meta_init import InitFunction, Turn, own_tensors, run_turn, turns_of
from osdp.sharding.pretrained_resets import pretrained_resets
from osdp.sharding.resharding import Resharding

# A parameter on the meta device -> the one with values that took its place.
_placed: MutableMapping[Tensor, ref[nn.Parameter]] = WeakIdKeyDictionary()


def keep_ties(model: nn.Module) -> None:
    """Modules that hold a meta parameter of a part that was sharded get the one in its place: they were tied."""
    for module in model.modules() if _placed else ():
        for key, parameter in list(module._parameters.items()):
            if (
                parameter is not None
                and (placed := _placed.get(parameter)) is not None
                and placed() is not None
            ):
                setattr(module, key, placed())


@dataclass(frozen=True)
class Survey:
    """The device of a model's tensors, and whether some tensor of some rank is on a different one now."""

    device: torch.device
    elsewhere: bool


def survey(
    together: Together,
    model: nn.Module,
    group: dist.ProcessGroup,
    device_id: int | str | torch.device | None = None,
    offload: bool = False,
    initialise: bool | None = True,
) -> Survey:
    """The device that the model trains on: `device_id`; else the device of its tensors; for the meta device
    (and, with `offload`, for the host) the current accelerator if `group` communicates on it, else the CPU.
    Collective.

    Raises DisagreementError if ranks have different arguments or values on different kinds of devices, or if
    rank 0, whose values are used, lacks one that another rank has.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    wanted = None if device_id is None else _device(device_id)
    real = {t.device for t in tensors.values() if not t.is_meta}
    missing = sorted(name for name, t in tensors.items() if t.is_meta)
    moves = wanted is not None and real not in (set(), {wanted})
    told = {"device_id": wanted and wanted.type, "cpu_offload": offload, "initialise": initialise}
    answers = together.all((told, sorted({d.type for d in real}), missing, moves))
    for rank, (theirs, kinds, lacking, _) in enumerate(answers):
        for option, value in theirs.items():
            if value != answers[0][0][option]:
                raise DisagreementError(
                    f"ranks were given different options: {option}={value} on {together.name(rank)}, "
                    f"{option}={answers[0][0][option]} on {together.name(0)}"
                )
        if wanted is None and kinds and answers[0][1] and kinds != answers[0][1]:
            raise DisagreementError(
                f"{together.name(rank)} has the model on {', '.join(kinds)}, but {together.name(0)} has it on "
                f"{', '.join(answers[0][1])}"
            )
        if only := set(answers[0][2]) - set(lacking):
            first = together.name(0)
            raise DisagreementError(
                f"{first} has {min(only)!r} on the meta device, but {together.name(rank)} has its value: build "
                f"the model the same way on all ranks, or with values on {first}, whose values are used"
            )
    known = next((kinds[0] for _, kinds, _, _ in answers if kinds), None)
    if wanted is None and (known is None or (offload and known == "cpu")):
        wanted = _accelerator(group)
    device = wanted or next(iter(real), _device(known or "cpu"))
    moved = any(moves or lacking or kinds not in ([], [device.type]) for _, kinds, lacking, moves in answers)
    return Survey(device, moved)


def _accelerator(group: dist.ProcessGroup) -> torch.device:
    current = torch.accelerator.current_accelerator(check_available=True)
    if current is None or current.type not in {d.type for d in group._device_types}:
        return torch.device("cpu")
    return _device(current)


def _device(given: int | str | torch.device) -> torch.device:
    """`given` as a device with its index, if it has one."""
    if isinstance(given, int):
        kind = torch.accelerator.current_accelerator(check_available=True)
        if kind is None:
            raise InvalidProblemError(f"device_id is {given}, but there is no accelerator here")
        return torch.device(kind.type, given)
    device = torch.device(given)
    if device.type == "meta":
        raise InvalidProblemError("device_id is the meta device, where no model can train")
    if device.type == "cpu" or device.index is not None:
        return torch.device("cpu") if device.type == "cpu" else device
    return torch.device(device.type, torch.accelerator.current_device_index())


class Placing:
    """Places the parameters of one model: `spec` for the runtime, then `fill`, then `commit`. Existing values
    are only read."""

    def __init__(
        self,
        model: nn.Module,
        together: Together,
        device: torch.device,
        init: InitFunction | None = None,
        initialise: bool | None = True,
        resharding: Resharding | None = None,
    ) -> None:
        """Collective. Raises ShardingError on all ranks, with nothing changed, if a module cannot be
        initialised."""
        self.model, self.together, self.device, self.init = model, together, device, init
        self.lenient, self.resharding = initialise is None, resharding
        self.parameters = dict(model.named_parameters())
        self.buffers = dict(model.named_buffers())
        # Tensors without a value on rank 0 are initialised, on all ranks; the others get rank 0's value.
        first = together.first(lambda: {n for n, t in self._tensors().items() if t.is_meta})
        self.initialised = {id(t) for n, t in self._tensors().items() if n in first}
        self.turns: list[Turn] = []
        self.resets = pretrained_resets(model)
        if first:
            self.turns = together.do(
                "initialising the model",
                lambda: turns_of(model, init, initialise is False, self.resets, self.lenient),
            )
        self.stand_ins: dict[int, nn.Parameter] = {}
        self.values: dict[int, Tensor] = {}  # data of real parameters, until they are placed
        self.new_buffers: dict[int, Tensor] = {}

    def _tensors(self) -> dict[str, Tensor]:
        return {**self.parameters, **self.buffers}

    def stand_in(self, name: str) -> nn.Parameter:
        """The parameter object that will be sharded, without memory yet: the parameter itself, unless it is
        on the meta device."""
        parameter = self.parameters[name]
        empty = torch.empty(0, dtype=parameter.dtype, device=self.device)
        if parameter.is_meta:
            stand_in = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            stand_in.__dict__.update(parameter.__dict__)
        else:
            self.values[id(parameter)] = parameter.data
            parameter.data, parameter.grad = empty, None
            stand_in = parameter
        self.stand_ins[id(parameter)] = stand_in
        return stand_in

    def local(self, name: str, offload: bool) -> Tensor | None:
        """This rank's part, where a part of the model that was sharded before has it as it will be: `fill` leaves it."""
        if self.resharding is None or offload:
            return None
        return self.resharding.give(self.parameters[name], self.device)

    def fill(self, runtime: _C.Runtime, collectives: _C.Collectives) -> None:
        """Give every rank its part of all tensors. Collective; errors are raised on all ranks."""
        index = {id(p): i for i, p in enumerate(self.parameters.values())}

        def take(tensor: Tensor, full: Tensor) -> None:
            if id(tensor) in index:
                local = self.stand_ins[id(tensor)].detach()
                local.copy_(runtime.take_local(index[id(tensor)], full))
            else:
                self.new_buffers[id(tensor)] = full

        filled: set[int] = set()
        for turn in self.turns:
            made = self._made(turn, collectives, filled)
            by_id = {id(t): t for _, module in turn.modules for _, t in own_tensors(module)}
            layouts = {key: layout_of(by_id[key]) for key in made}
            for key, layout in layouts.items():
                if layout is not None:
                    layout.take_first(made[key])
            collectives.broadcast(list(made.values()))
            for key, full in made.items():
                layout = layouts[key]
                take(by_id[key], full if layout is None else layout.part_of(full).contiguous())
            filled |= set(layouts)  # without what the turn leaves to the script
            del made
        for tensor in self._tensors().values():
            if id(tensor) in self.initialised:
                if id(tensor) not in filled:
                    self._leave_to_be_loaded(tensor)
                continue
            if self._from_part(tensor, index.get(id(tensor)), runtime):
                continue
            full = self._value_of(tensor)
            collectives.broadcast([full])
            take(tensor, full)

    def _from_part(self, tensor: Tensor, index: int | None, runtime: _C.Runtime) -> bool:
        """Whether a part that was sharded before has given this rank's rows of the parameter."""
        if index is None or self.resharding is None:
            return False
        if self.resharding.given(tensor):
            self.values.pop(id(tensor))
            return True
        part = self.resharding.take(tensor, index, runtime)
        if part is not None:
            self.values.pop(id(tensor))
            self.stand_ins[id(tensor)].detach().copy_(part)
        return part is not None

    def commit(self) -> None:
        """Put the placed tensors into the model. Parameters from the meta device become new objects, and buffers that
        were elsewhere; the others stay the same objects, to which a script may have references. Ties are kept."""
        for known in self.buffers.values():
            if known.device == self.device and known.is_contiguous():
                with torch.no_grad():
                    known.copy_(self.new_buffers.pop(id(known)))
        for module in self.model.modules():
            for key, parameter in list(module._parameters.items()):
                if parameter is not None and parameter.is_meta:
                    setattr(module, key, self.stand_ins[id(parameter)])  # LSTMs keep lists of their weights
                    _placed[parameter] = ref(self.stand_ins[id(parameter)])
            for key, buffer in list(module._buffers.items()):
                if buffer is not None and id(buffer) in self.new_buffers:
                    module._buffers[key] = self.new_buffers[id(buffer)]

    def _made(self, turn: Turn, collectives: _C.Collectives, filled: set[int]) -> dict[int, Tensor]:
        made: dict[int, Tensor] = {}
        error: Exception | None = None
        try:
            made = run_turn(turn, self.init, self.device, filled, self.resets, self.lenient)
        except Exception as caught:
            error = caught
        failed = torch.tensor([float(error is not None)], device=self.device)
        collectives.all_reduce_mean([failed])
        divided = next(
            (layout for p in self.parameters.values() if (layout := layout_of(p)) is not None), None
        )
        if divided is not None:
            dist.all_reduce(failed, group=divided.mesh.get_group())
        if failed.item() > 0:  # all ranks come here
            self.together.raise_everywhere("initialising the model", error)
            raise ShardingError(
                "initialising the model failed on a rank of tensor parallelism, which says why"
            )
        return made

    def _value_of(self, tensor: Tensor) -> Tensor:
        value = self.values.pop(id(tensor), tensor)
        if tensor.is_meta or self.together.rank != 0:
            return torch.empty_like(value, device=self.device, requires_grad=False)
        return value.detach().to(self.device)

    def _leave_to_be_loaded(self, tensor: Tensor) -> None:
        if id(tensor) in self.stand_ins:
            fresh = self.stand_ins[id(tensor)].detach()
        else:
            fresh = torch.empty_like(tensor, device=self.device)
            self.new_buffers[id(tensor)] = fresh
        number = fresh.is_floating_point() or fresh.is_complex()
        fresh.fill_(torch.nan if number else 0)  # so that a forgotten load is noticed
