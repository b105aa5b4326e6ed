"""Parameters in whose place tensor parallelism has put others: an optimizer that has them trains nothing of the model.

torch's parallelize_module makes new parameters, and `fully_shard` plain ones of these. A script that makes its optimizer
before would step parameters without gradients, without a word.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from osdp.errors import ShardingError

# Parameter -> its name, and the function after which to make optimizers.
_replaced = WeakTensorKeyDictionary()


def note_replaced(before: Mapping[str, Tensor], model: nn.Module, function: str) -> None:
    """Of the parameters that were in the model, those that others of their names have replaced."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        former = before.get(name)
        if former is not None and former is not parameter:
            _replaced[former] = name, function


def check_replaced(optimizer: Optimizer) -> None:
    """Raises ShardingError if the optimizer has one of them."""
    if not _replaced:
        return
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        found = _replaced.get(parameter)  # type: ignore[no-untyped-call]
        if found is not None:
            name, function = found
            raise ShardingError(
                f"{type(optimizer).__name__} was made before {function} and has the former parameter {name!r}, in whose "
                "place tensor parallelism has put another, which the step would not change: make the optimizer after "
                f"{function}"
            )
