"""What the tests of the split product share: a slice source over a plain tensor, and weight layouts."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from osdp._C import register_source, unregister_source

torch.set_num_threads(1)  # these tensors are tiny: waking a second thread costs more than it does

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def sliced_dimension(split: str, transposed: bool = False) -> int:
    return 0 if (split == "out") != transposed else 1


def slices_of(weight: Tensor, granularity: int, split: str, transposed: bool = False) -> list[Tensor]:
    """The slices of an ordinary [out, in] weight, or of a transposed one."""
    dimension = sliced_dimension(split, transposed)
    length = weight.shape[dimension]
    borders = [i * length // granularity for i in range(1, granularity)]
    return list(weight.tensor_split(borders, dimension))


def stacked(weight: Tensor, granularity: int, split: str, transposed: bool = False) -> Tensor:
    """The layout that source 0 expects: all slices, one below the other."""
    return torch.cat(slices_of(weight, granularity, split, transposed), 0)


class TensorSource:
    """A slice source over a plain weight: records every call, and keeps the promise a runtime relies on.

    Slices are handed out as copies that are poisoned at release, so that a late read shows in the results.
    """

    def __init__(self, weight: Tensor, granularity: int, split: str, transposed: bool = False) -> None:
        self.slices = [s.detach().clone() for s in slices_of(weight, granularity, split, transposed)]
        self.split = split
        self.dimension = sliced_dimension(split, transposed)
        self.events: list[tuple[object, ...]] = []
        self.held: dict[int, Tensor] = {}
        self.grads: dict[int, Tensor] = {}
        self.most_held = 0
        self.acquired: dict[int, int] = defaultdict(int)
        self.fail_at: tuple[str, int] | None = None
        self.id = register_source(self)

    def _event(self, name: str, index: int, *more: int) -> None:
        self.events.append((name, index, *more))
        if self.fail_at == (name, index):
            raise KeyError(f"{name} {index} failed")

    def acquire(self, index: int, following: int) -> Tensor:
        self._event("acquire", index, following)
        assert index not in self.held
        self.held[index] = self.slices[index].clone()
        self.acquired[index] += 1
        self.most_held = max(self.most_held, len(self.held))
        return self.held[index]

    def release(self, index: int) -> None:
        self.events.append(("release", index))
        self.acquired[index] -= 1
        self.held.pop(index).fill_(float("nan"))

    def put_grad(self, index: int, grad: Tensor) -> None:
        self._event("put_grad", index)
        assert grad.shape == self.slices[index].shape and grad.is_contiguous()
        self.grads[index] = grad if index not in self.grads else self.grads[index] + grad

    def balanced(self) -> bool:
        return not self.held and all(count == 0 for count in self.acquired.values())

    def full_grad(self) -> Tensor:
        """The gradients put so far, in the layout of the ordinary weight."""
        return torch.cat([self.grads[i] for i in range(len(self.slices))], self.dimension)

    def close(self) -> None:
        unregister_source(self.id)
