"""What forward does with outputs of which a rank of tensor parallelism has a part, and the styles that divide them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel
from torch.nn import functional as F

import osdp
from osdp.parallel import tensor_styles
from osdp.parallel.split_outputs import SplitOutputs
from osdp.planning.degrees.styles import plan_of

MIXED: dict[str, Callable[[Tensor], Any]] = {
    "gated linear unit": F.glu,
    "softmax": lambda y: y.softmax(-1),
    "normalised": lambda y: F.normalize(y, dim=-1),
    "mean of squares": lambda y: y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6),
    "mean": lambda y: (2 * y).mean(),
    "in another order": lambda y: y.flip(2),
    "layer norm": lambda y: F.layer_norm(y.float(), (8,)),
    "sums": lambda y: torch.relu(y).sum(dim=(0, 2)),
}
APART: dict[str, Callable[[Tensor], Any]] = {
    "softmax over the sequence": lambda y: F.softmax(y, 1),
    "mean over the sequence": lambda y: y.mean(1),
    "the larger": lambda y: torch.max(y, 2 * y),
    "looked at": lambda y: y.detach().mean(),
    "each": lambda y: F.dropout(F.gelu(y) * 2),
    "of a head": lambda y: y.view(2, 3, -1, 4).softmax(-1),
}


@pytest.mark.parametrize("what", [*MIXED, *APART])
def test_what_is_computed_over_all_outputs_is_noticed(what: str) -> None:
    linear = nn.Linear(4, 8)
    seen = SplitOutputs({"up": linear}, {})
    with seen:
        {**MIXED, **APART}[what](linear(torch.randn(2, 3, 4)))
    seen.close()
    assert seen.mixed == ({"up"} if what in MIXED else set())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(4)
        self.inner = nn.ModuleDict({"norm": nn.LayerNorm(4)})

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.inner["norm"](self.down(torch.relu(self.up(x)))))


def test_strings_and_objects_in_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a stage without `norm` its pattern is not the other norm's."""
    model, divided = Net(), {}
    described = osdp.describe(model, torch.zeros(2, 4))
    given = {"up": ColwiseParallel(use_local_output=True), "down": "rowwise", "norm": SequenceParallel()}
    monkeypatch.setattr(tensor_styles, "parallelize_module", lambda _, mesh, styles: divided.update(styles))
    plan = plan_of(given)
    tensor_styles.check_styles(described, plan, given, model)
    del model.norm
    tensor_styles.parallelize_stage(model, described, plan, given, None)  # type: ignore[arg-type]
    assert set(divided) == {"up", "down"} and divided["up"] is given["up"]
    assert isinstance(divided["down"], RowwiseParallel)
    with pytest.raises(osdp.InvalidProblemError, match="'sequence', of which it does not keep the layouts"):
        tensor_styles.check_styles(described, plan, {**given, "norm": "sequence"}, model)
    with pytest.raises(osdp.InvalidProblemError, match="gives 'norm', a LayerNorm, the style 'colwise'"):
        tensor_styles.check_styles(described, {"norm": "colwise"}, None, Net())
