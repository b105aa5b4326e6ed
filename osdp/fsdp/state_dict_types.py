"""FSDP1's state_dict_type: the form of state_dict() and optim_state_dict(), set within a context or
permanently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.distributed import fsdp

from osdp.errors import InvalidProblemError
from osdp.fsdp.sharded_in import sharded_in
from osdp.sharding.sharded_model import Sharded, runtime_of
from osdp.sharding.state_dict_form import StateDictForm

Type = fsdp.StateDictType
_KINDS = {
    Type.FULL_STATE_DICT: ("full", fsdp.FullStateDictConfig, fsdp.FullOptimStateDictConfig),
    Type.SHARDED_STATE_DICT: ("sharded", fsdp.ShardedStateDictConfig, fsdp.ShardedOptimStateDictConfig),
    # FSDP1's local tensors also carry their position: torch.distributed.checkpoint would treat plain rows as
    # the whole parameter. local_state_dict() returns plain rows.
    Type.LOCAL_STATE_DICT: ("sharded", fsdp.LocalStateDictConfig, fsdp.LocalOptimStateDictConfig),
}
_settings: WeakKeyDictionary[Sharded, fsdp.StateDictSettings] = WeakKeyDictionary()


def get_state_dict_type(module: nn.Module) -> fsdp.StateDictSettings:
    """The settings of the sharded models in `module`, which must agree. Full if there are none."""
    found = [_settings_of(sharded) for _, sharded in sharded_in(module)] or [_as_settings(StateDictForm())]
    if any(settings != found[0] for settings in found):
        raise InvalidProblemError(
            f"the sharded models in this {type(module).__name__} use different state dict types"
        )
    return found[0]


def set_state_dict_type(
    module: nn.Module,
    state_dict_type: fsdp.StateDictType,
    state_dict_config: fsdp.StateDictConfig | None = None,
    optim_state_dict_config: fsdp.OptimStateDictConfig | None = None,
) -> fsdp.StateDictSettings:
    """Set for all sharded models in `module`; returns what was set before. Raises InvalidProblemError.

    >>> FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True))
    """
    before = get_state_dict_type(module)
    if state_dict_type not in _KINDS:
        raise InvalidProblemError(
            f"state_dict_type must be one of {', '.join(map(str, _KINDS))}, got {state_dict_type!r}"
        )
    _, model_class, optimizer_class = _KINDS[state_dict_type]
    model_config: Any = state_dict_config or model_class()
    optimizer_config: Any = optim_state_dict_config or optimizer_class()
    for config, wanted in ((model_config, model_class), (optimizer_config, optimizer_class)):
        if not isinstance(config, wanted):
            raise InvalidProblemError(f"{state_dict_type} needs a {wanted.__name__}, got {config!r}")
    for _, sharded in sharded_in(module):
        _set(sharded, fsdp.StateDictSettings(state_dict_type, model_config, optimizer_config))
    return before


@contextmanager
def state_dict_type(
    module: nn.Module,
    state_dict_type: fsdp.StateDictType,
    state_dict_config: fsdp.StateDictConfig | None = None,
    optim_state_dict_config: fsdp.OptimStateDictConfig | None = None,
) -> Iterator[None]:
    """Context in which the type is set as by `set_state_dict_type`; restored afterwards."""
    before = [(model, _settings_of(sharded), sharded.form) for model, sharded in sharded_in(module)]
    set_state_dict_type(module, state_dict_type, state_dict_config, optim_state_dict_config)
    try:
        yield
    finally:
        for model, settings, form in before:
            sharded = runtime_of(model)
            _settings[sharded], sharded.form = settings, form


@contextmanager
def shown_as_rows(module: nn.Module) -> Iterator[None]:
    """Context in which state_dict() and load_state_dict() use this rank's bare rows."""
    before = [(sharded, sharded.form) for _, sharded in sharded_in(module)]
    for sharded, _ in before:
        sharded.form = StateDictForm("local")
    try:
        yield
    finally:
        for sharded, form in before:
            sharded.form = form


def carry_over(old: Sharded, new: Sharded) -> None:
    """Copy what a script has set for a model that was sharded anew, as `new`, or copied."""
    new.form = old.form
    new.runtime.sync, new.runtime.part = old.runtime.sync, old.runtime.part
    if old in _settings:
        _settings[new] = _settings[old]


def optimizer_form(module: nn.Module) -> StateDictForm:
    """The form of `optim_state_dict`."""
    settings = get_state_dict_type(module)
    return _form(settings, settings.optim_state_dict_config)


def _settings_of(sharded: Sharded) -> fsdp.StateDictSettings:
    if sharded not in _settings:  # not set: the form given when the model was wrapped
        _settings[sharded] = _as_settings(sharded.form)
    return _settings[sharded]


def _as_settings(form: StateDictForm) -> fsdp.StateDictSettings:
    which = next(t for t in _KINDS if t.name == f"{form.kind.upper()}_STATE_DICT")
    _, model_class, optimizer_class = _KINDS[which]
    config: Any = model_class(offload_to_cpu=form.on_host)
    if form.kind == "full":
        config.rank0_only = form.rank0_only
    return fsdp.StateDictSettings(which, config, optimizer_class())


def _set(sharded: Sharded, settings: fsdp.StateDictSettings) -> None:
    _settings[sharded], sharded.form = settings, _form(settings, settings.state_dict_config)


def _form(settings: fsdp.StateDictSettings, config: Any) -> StateDictForm:
    kind = _KINDS[settings.state_dict_type][0]
    return StateDictForm(kind, config.offload_to_cpu, getattr(config, "rank0_only", False))
