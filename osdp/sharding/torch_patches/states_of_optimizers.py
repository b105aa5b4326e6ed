"""Which optimizers have states of sharded parameters: those that were seen to step or to load one.

Note [Optimizers that have states]
Where a plan is made at the first forward, rows move between ranks, and optimizer states with them. An optimizer may have
loaded its states before. Optimizers are known from then on, or from their first step. One whose constructor makes states
(Adagrad) is not known before; its first step is refused if they have the shape of rows that have moved since.
"""

from __future__ import annotations

from weakref import WeakSet

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from osdp.errors import ShardingError

_known: WeakSet[Optimizer] = WeakSet()
_moved = WeakTensorKeyDictionary()  # parameter -> the shape that this rank held


def holds_states(optimizer: Optimizer) -> None:
    _known.add(optimizer)


def known_optimizers() -> list[Optimizer]:
    return list(_known)


def rows_moved(parameter: Tensor, former: tuple[int, ...]) -> None:
    _moved[parameter] = former


def check_first_step(optimizer: Optimizer) -> None:
    """Raises ShardingError if it was made before its parameters' rows moved."""
    if optimizer in _known:
        return
    for parameter, state in optimizer.state.items():
        if not isinstance(parameter, Tensor):
            continue  # some keep counters of the whole run under names
        former = _moved.get(parameter)  # type: ignore[no-untyped-call]
        for key, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, Tensor) and tuple(value.shape) == former != tuple(parameter.shape):
                raise ShardingError(
                    f"{type(optimizer).__name__} keeps a state {key!r} of shape {former} for a parameter of which this "
                    f"rank holds {tuple(parameter.shape)}: it made the state before memory= found the plan, at the first "
                    "forward, which moved rows between ranks. Make the optimizer after that forward, or pass sample= to "
                    "the wrap, so that the plan is made before"
                )
    holds_states(optimizer)
