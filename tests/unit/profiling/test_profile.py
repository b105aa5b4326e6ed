"""profile: leaves the model alone, adds up, agrees over ranks, and fails on all of them together."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import osdp
from osdp.hardware.hardware import Collective, DeviceMemory, Hardware
from osdp.planning.core_inputs import compute_s
from osdp.profiling import operator_times
from osdp.profiling.operator_times import Gamma, measure_gamma
from tests.unit.description.nasty_models import GPT, ConvNet, Twice

CPU = torch.device("cpu")


class Counting(nn.Module):
    """Changes what a forward can change: buffers in place and by assignment, attributes, generators."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ConvNet()
        self.register_buffer("replaced", torch.zeros(2))
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        self.replaced = self.replaced + 1
        return nn.functional.dropout(self.net(x), 0.5)


def test_the_model_is_left_as_it_was() -> None:
    model = Counting()
    model.net.conv.weight.grad = torch.full_like(model.net.conv.weight, 3.0)
    model.net.head.weight.register_post_accumulate_grad_hook(lambda p: pytest.fail("a real backward ran"))
    before = {name: (tensor, tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    sample, state = torch.randn(4, 3, 8, 8), torch.get_rng_state()
    hardware = osdp.profile(model, sample, seconds=0.3)
    assert hardware.gamma_s["net.conv"] + hardware.gamma_fixed_s["net.conv"] > 0
    assert model.step == 0 and torch.equal(state, torch.get_rng_state())
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert tensor is before[name][0] and torch.equal(tensor, before[name][1]), name
    assert torch.equal(model.net.conv.weight.grad, torch.full_like(model.net.conv.weight, 3.0))
    assert model.net.head.weight.grad is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_operators_times_add_up_to_the_whole_and_equal_operators_are_equal() -> None:
    model, sample = GPT(width=64, layers=2), torch.zeros(4, 16, dtype=torch.long)
    description = osdp.describe(model, sample)
    hardware = osdp.profile(model, sample, seconds=0.5)
    assert set(hardware.gamma_s) <= {o.name for o in description.operators}
    assert {o.name for o in description.operators if o.parameters} <= set(hardware.gamma_s)
    for part in ("norm1", "qkv", "up"):
        assert hardware.gamma_s[f"blocks.0.{part}"] == hardware.gamma_s[f"blocks.1.{part}"]
    assert all(v >= 0 for v in (*hardware.gamma_s.values(), *hardware.gamma_fixed_s.values()))
    whole = sum(hardware.gamma_s.values()) * 4 + sum(hardware.gamma_fixed_s.values())
    forward = sum(hardware.recompute_s.values()) * 4
    assert 0 < forward < whole


def test_no_time_rounds_to_less_than_zero() -> None:
    """A sample's time times their number may be more than what that number took, in the last digit."""
    for k in range(1, 200):
        slope, offset = operator_times._line(7, 0.0, 49, k / 7)
        assert slope > 0 and offset >= 0


def test_parts_are_scaled_to_the_whole_and_split_by_batch_size() -> None:
    whole = {2: [(1.0, 3.0)] * 3, 4: [(1.5, 4.5)] * 3}  # 2 s whatever the batch, 1 s per sample
    part = {
        2: [({"a": 0.1, "b": 0.3}, {"a": 0.6, "b": 0.6})] * 3,
        4: [({"a": 0.2, "b": 0.4}, {"a": 1.2, "b": 0.6})] * 3,
    }
    found: Gamma = operator_times._combine({"a": 1, "b": 2}, 4, whole, part)
    assert sum(found.per_sample_s.values()) == pytest.approx(1.0)
    assert sum(found.fixed_s.values()) == pytest.approx(2.0)
    assert sum(found.forward_s.values()) == pytest.approx(1.5 / 4)
    # At the sample's own size, whichever that is.
    at_two = operator_times._combine({"a": 1, "b": 2}, 2, whole, part)
    assert sum(at_two.forward_s.values()) == pytest.approx(1.0 / 2)
    assert found.per_sample_s["a"] > found.per_sample_s["b"] and found.fixed_s["b"] > found.fixed_s["a"]


def test_backward_time_goes_to_the_operator_that_made_the_node() -> None:
    """A custom function that sleeps in its backward: nearly all time must be its module's."""
    import time

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            time.sleep(0.02)
            return grad

    class Sleeper(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Slow.apply(x)

    model = nn.Sequential(nn.Linear(4, 4), Sleeper(), nn.Linear(4, 4))
    alike = {name: name for name in ("0", "1", "2")}
    found = measure_gamma(model, (torch.randn(4, 4),), {}, alike, CPU, 0.1)
    total = {name: found.per_sample_s[name] * 4 + found.fixed_s[name] for name in alike}
    assert total["1"] >= 0.02 > 10 * found.forward_s["1"]
    assert total["1"] > 5 * (total["0"] + total["2"])


def test_a_size_that_the_model_refuses_is_left_out() -> None:
    """BatchNorm refuses one sample of one pixel; the sample itself has two."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    class OnlyTwo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert len(x) == 2, "made for two samples"
            return self.inner(x)

    hardware = osdp.profile(OnlyTwo(), torch.randn(2, 4), seconds=0.2)
    assert sum(hardware.gamma_fixed_s.values()) == 0 and sum(hardware.gamma_s.values()) > 0


def test_one_process_pays_nothing_for_collectives_and_measures_the_rest() -> None:
    hardware = osdp.profile(seconds=0.2)
    assert hardware.all_gather == hardware.reduce_scatter == hardware.all_reduce == Collective(0.0, 0.0)
    assert hardware.world_size == 1 and hardware.device == "cpu" and hardware.gamma_s == {}
    assert (
        hardware.flops_per_s > 1e7
        and hardware.optimizer_s_per_byte > 0
        and (hardware.memory_bytes or 0) > 2**28
    )


def test_a_description_or_a_meta_model_gets_its_times_from_flops_at_its_precision_s_rate() -> None:
    sample = torch.randn(2, 8)
    description = osdp.describe(Twice(), sample)
    hardware = osdp.profile(description, seconds=0.2)
    assert hardware.gamma_s == {} and hardware.recompute_s == {}
    first = description.operators[0]
    assert first.name == "first"
    for dtype, rate in {"float32": hardware.flops_per_s, **hardware.flops_per_s_by_dtype}.items():
        time = compute_s(first, hardware, dtype)
        assert time.per_sample == pytest.approx(3 * first.flops_per_sample / rate) and time.fixed == 0
        assert time.forward_per_sample == pytest.approx(first.flops_per_sample / rate)
    with torch.device("meta"):
        model = Twice()
    assert osdp.profile(model, sample, seconds=0.2).gamma_s == {}


def test_rates_are_of_the_dtypes_that_the_device_has_and_a_cpu_holds_tensors_only() -> None:
    hardware = osdp.profile(seconds=0.2)
    assert "bfloat16" in hardware.flops_per_s_by_dtype and "tf32" not in hardware.flops_per_s_by_dtype
    assert all(1e6 < rate < 1e16 for rate in hardware.flops_per_s_by_dtype.values())
    assert hardware.device_memory == DeviceMemory()
    assert Hardware.loads(hardware.dumps()) == hardware


@pytest.mark.parametrize(
    ("model", "sample", "match"),
    [
        (nn.Linear(3, 3), torch.randn(2, 4), "preparing.*Linear ''"),
        ("gpt", torch.randn(2), "expected a module"),
        (nn.Linear(3, 3).requires_grad_(False), torch.randn(2, 3), "no output of the model depends"),
    ],
)
def test_failures_are_profile_errors(model: object, sample: torch.Tensor, match: str) -> None:
    with pytest.raises(osdp.ProfileError, match=match):
        osdp.profile(model, sample, seconds=0.2)  # type: ignore[arg-type]
