"""MovedStates: redistributes optimizer states together with the parameters whose rows move between ranks."""

from __future__ import annotations

from torch import Tensor, nn

from osdp.base.tensor_parallel import local_part
from osdp.errors import DisagreementError, ShardingError
from osdp.ranks.rank_group import Together, first_unlike
from osdp.sharding.dtensor_parameters import shown_like
from osdp.sharding.resharding import Resharding
from osdp.sharding.sharded_model import Sharded
from osdp.sharding.torch_patches.states_of_optimizers import known_optimizers, rows_moved


class MovedStates:
    """The states that optimizers have before the first forward: Note [Optimizers that have states]."""

    def __init__(self, model: nn.Module, sharded: Sharded) -> None:
        """Raises ShardingError for a state whose shape is not its parameter's, since it is unknown how to
        shard it."""
        self.old = sharded
        # The optimizer's dictionary of a parameter, the key, the parameter and its index.
        self._states: list[tuple[dict[str, object], str, Tensor, int]] = []
        index = {id(p): i for i, p in enumerate(sharded.tree.known)}
        self._former = {p: tuple(p.shape) for p in sharded.tree.known}
        seen: set[int] = set()  # optimizers that wrap another one (Accelerate's, Lightning's) have its states
        for optimizer in known_optimizers():
            for parameter, state in list(optimizer.state.items()):
                if id(parameter) not in index or not isinstance(state, dict) or id(state) in seen:
                    continue
                seen.add(id(state))
                for key, value in state.items():
                    if not isinstance(value, Tensor) or (value.dim() == 0 and parameter.dim() > 0):
                        continue
                    if shown_like(parameter) is not None:
                        value = local_part(value)
                    if value.shape != parameter.shape:
                        raise ShardingError(
                            f"{type(optimizer).__name__} keeps a state {key!r} of shape "
                            f"{tuple(value.shape)} for {sharded.name_of(index[id(parameter)])!r}, "
                            f"whose part on this rank has shape {tuple(parameter.shape)}: it cannot "
                            "be resharded for the plan that memory= finds. Pass sample= to the wrap, "
                            "so that the plan is made before the optimizer"
                        )
                    self._states.append((state, key, parameter, index[id(parameter)]))
        self._states.sort(key=lambda s: (s[3], s[1]))

    def agree(self, together: Together) -> None:
        """Raises DisagreementError if ranks have different states. Collective."""
        told = together.all([(index, key) for _, key, _, index in self._states])
        if other := first_unlike(told):
            raise DisagreementError(
                f"{together.name(other)} has {len(told[other])} tensors of optimizer state and {together.name(0)} has "
                f"{len(told[0])}: load the state on all ranks or on none"
            )

    def move(self, resharding: Resharding, new: Sharded) -> None:
        """Redistribute the states after the resharding; one state is full at a time. Collective."""
        for moved, shape in self._former.items():
            if not resharding.stays(moved):
                rows_moved(moved, shape)
        for state, key, parameter, index in self._states:
            if resharding.stays(parameter):
                continue
            value = state[key]
            assert isinstance(value, Tensor)
            wrap = shown_like(parameter)
            full = self.old.runtime.gather_whole(index, value if wrap is None else local_part(value))
            local = new.runtime.take_local(new.tree.index[id(parameter)], full)
            state[key] = local if wrap is None else wrap(local)
