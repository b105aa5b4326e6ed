"""state_dict and load_state_dict of a sharded model speak of full tensors, under the unwrapped model's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from osdp.errors import ShardingError

if TYPE_CHECKING:
    from osdp.sharding import Sharded


def show_full_state(model: nn.Module, sharded: Sharded) -> None:
    """Install the hooks. They sit on the modules that own parameters, so that a submodule's state dict is full too.

    state_dict() is collective (every rank gathers each parameter in turn) and makes full tensors on every rank;
    load_state_dict() is local: each rank takes its part.
    """
    name_of = {id(p): name for name, p in model.named_parameters()}
    for module in model.modules():
        own = {key: name_of[id(p)] for key, p in module.named_parameters(recurse=False)}
        own = {key: name for key, name in own.items() if not sharded.is_whole(name)}
        if own:
            module.register_state_dict_post_hook(_Saving(sharded, own))  # type: ignore[no-untyped-call]
            module.register_load_state_dict_pre_hook(_Loading(sharded, own))  # type: ignore[no-untyped-call]


class _Saving:
    def __init__(self, sharded: Sharded, own: dict[str, str]) -> None:
        self.sharded = sharded
        self.own = own

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for key, name in self.own.items():
            if prefix + key in state:
                parameter: Tensor = getattr(module, key)
                # Inside summon_full_params the parameter is full already.
                full = (
                    tuple(parameter.shape) == self.sharded.full_shape(name) and self.sharded.runtime.summoned
                )
                state[prefix + key] = (
                    parameter.detach().clone() if full else self.sharded.gather_whole(name, parameter)
                )


class _Loading:
    def __init__(self, sharded: Sharded, own: dict[str, str]) -> None:
        self.sharded = sharded
        self.own = own

    def __call__(
        self,
        module: nn.Module,
        state: dict[str, Any],
        prefix: str,
        metadata: dict[str, Any],
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        if metadata.get("assign_to_params_buffers", False):
            raise ShardingError(
                "load_state_dict(assign=True) would replace the sharded parameters; load with assign=False"
            )
        if self.sharded.runtime.summoned:
            return
        for key, name in self.own.items():
            full = state.get(prefix + key)
            if full is None:
                continue
            wanted = self.sharded.full_shape(name)
            if not isinstance(full, Tensor) or tuple(full.shape) != wanted:
                # Taken out, so that a tensor of by chance this rank's local shape is not loaded as if it were full.
                del state[prefix + key]
                found = tuple(full.shape) if isinstance(full, Tensor) else type(full).__name__
                errors.append(
                    f"size mismatch for {prefix + key}: {found} in the state dict, {wanted} in the model."
                )
            else:
                state[prefix + key] = self.sharded.take_local(name, full)
