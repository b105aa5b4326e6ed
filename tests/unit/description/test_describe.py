"""What `describe` finds in models that no one tuned for, and that it leaves them alone."""

from __future__ import annotations

import copy
import random
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import osdp
from osdp.base.modules import HANDLES
from osdp.description.forward_tracer import Watcher
from osdp.description.model_description import Buffers, ModelDescription, Operator
from tests.unit.description.nasty_models import GPT, ConvNet, ReadByParent, Scaled, Structured, Twice, Wrapped


def by_name(description: ModelDescription) -> dict[str, Operator]:
    return {o.name: o for o in description.operators}


def tokens(batch: int = 2, length: int = 16) -> torch.Tensor:
    return torch.zeros(batch, length, dtype=torch.long)


def test_every_parameter_is_in_one_operator_in_execution_order() -> None:
    model = GPT()
    description = osdp.describe(model, tokens())
    assert sorted(p.name for p in description.parameters) == sorted(n for n, _ in model.named_parameters())
    names = [o.name for o in description.operators if o.parameters]
    block = [f"blocks.0.{part}" for part in ("norm1", "qkv", "proj", "norm2", "up", "down")]
    assert names == ["tokens", "", *block, *(n.replace("0", "1") for n in block), "norm"]
    assert description.name == "GPT" and description.sample_batch == 2
    assert description.input_bytes_per_sample == 16 * 8
    assert description.parameter_bytes == sum(p.numel() * 4 for p in model.parameters())


def test_a_tied_weight_is_one_parameter_gathered_at_both_of_its_readers() -> None:
    operators = by_name(osdp.describe(GPT(), tokens()))
    tied = operators["tokens"]
    assert [p.aliases for p in tied.parameters] == [("head.weight",)]
    assert tied.gather_at == ("tokens", "head") and tied.calls == 2
    assert tied.split_shape == (50, 32) and tied.look_ups == ("tokens",)
    assert operators["head"].parameters == () and operators["head"].flops_per_sample == 2 * 16 * 32 * 50


def test_gradients_of_what_is_read_twice_wait_for_their_sum_but_where_it_can_be_in_slices() -> None:
    def waiting(model: nn.Module) -> dict[str, int]:
        return {o.name: o.waiting_gradient_bytes for o in osdp.describe(model, tokens()).operators}

    gradient, tied = 50 * 32 * 4, waiting(GPT())
    assert tied["tokens"] == 2 * gradient and tied["blocks.0.norm1"] == tied["blocks.1.qkv"] == gradient
    assert all(bytes_ <= gradient for name, bytes_ in tied.items() if name != "tokens")
    assert set(waiting(GPT(tied=False)).values()) == {0}
    read_by_other_code = GPT()
    read_by_other_code.norm.register_forward_hook(lambda m, i, o: o @ read_by_other_code.tokens.weight.T)
    read_by_other_code.head = nn.Identity()
    assert set(waiting(read_by_other_code).values()) == {0}


def test_the_roots_own_parameter_is_gathered_at_the_root() -> None:
    operator = by_name(osdp.describe(GPT(), tokens()))[""]
    assert [p.name for p in operator.parameters] == ["positions"]
    assert operator.gather_at == ("",) and operator.block is None


def test_flops_of_a_linear_are_two_per_token_and_weight() -> None:
    operators = by_name(osdp.describe(GPT(width=32), tokens(batch=3, length=8)))
    assert operators["blocks.1.up"].flops_per_sample == 2 * 8 * 32 * 128
    assert operators["blocks.1.qkv"].flops_per_sample == 2 * 8 * 32 * 96
    attention = operators["blocks.1"]  # a call without parameters of its own: q k^T and the product with v
    assert attention.parameters == () and attention.flops_per_sample == 2 * (2 * 8 * 8 * 32)


def test_attention_reads_its_output_projection_itself() -> None:
    operators = by_name(
        osdp.describe(nn.TransformerEncoderLayer(16, 2, batch_first=True), torch.randn(2, 5, 16))
    )
    assert operators["self_attn"].gather_at == ("self_attn",)
    projection = operators["self_attn.out_proj"]
    assert projection.gather_at == ("self_attn",) and projection.traced and projection.split_shape is None
    assert operators["linear1"].split_shape == (2048, 16)


@pytest.mark.parametrize("layers", [1, 2])
def test_an_lstm_reads_all_its_weights_in_its_own_call(layers: int) -> None:
    lstm = nn.LSTM(8, 16, layers, batch_first=True)
    (operator,) = osdp.describe(lstm, torch.randn(2, 5, 8)).operators
    assert len(operator.parameters) == 4 * layers and operator.gather_at == ("",) and operator.traced
    products = sum(p.elements for p in operator.parameters if len(p.shape) == 2)
    assert operator.flops_per_sample == 2 * 5 * products


def test_a_conv_net_in_training_keeps_its_running_statistics() -> None:
    model = ConvNet()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    operators = by_name(osdp.describe(model, torch.randn(2, 3, 8, 8)))
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    assert operators["conv"].flops_per_sample == 2 * 8 * 8 * 8 * 27
    assert operators["norm"].buffer_bytes == 8 * 4 * 2 + 8
    assert operators["conv"].split_shape == (8, 27) and operators["conv"].kernel_places == 9


def test_every_buffer_counts_once() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask, self.never = nn.Module(), nn.Module()  # no operators
            self.mask.register_buffer("table", torch.zeros(10))
            self.never.register_buffer("table", self.mask.table)
            self.never.register_buffer("own", torch.zeros(3))
            self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.first(x))

    description = osdp.describe(Masked(), torch.randn(2, 4))
    assert by_name(description)["norm"].buffer_bytes == 2 * 4 * 4 + 8
    assert description.buffers == (Buffers(("mask", "never"), 40), Buffers(("never",), 12))
    assert description.buffer_bytes == 2 * 4 * 4 + 8 + 4 * 13


def test_weights_that_a_parent_reads_are_gathered_at_the_parent() -> None:
    operators = by_name(osdp.describe(Wrapped(), torch.randn(3, 4)))
    assert operators["part.inner"].gather_at == ("part",)
    # Read by its own call and by the parent, inside whose call its own lies: the parent's is enough.
    assert operators["part.both"].gather_at == ("part",)
    assert operators["part.inner"].split_shape is None and operators["part.both"].split_shape is None
    assert operators["last"].gather_at == ("last",) and operators["last"].split_shape == (2, 6)
    assert by_name(osdp.describe(ReadByParent(), torch.randn(3, 4)))["both"].gather_at == ("",)


def test_a_module_called_twice_counts_twice() -> None:
    operators = by_name(osdp.describe(Twice(), torch.randn(2, 8)))
    assert operators["again"].calls == 2 and operators["again"].flops_per_sample == 2 * 2 * 64
    assert operators["first"].calls == 1 and operators["again"].gather_at == ("again",)


def test_unused_parameters_are_gathered_at_a_callable_parent() -> None:
    description = osdp.describe(Scaled(), torch.randn(2, 4))
    operators = by_name(description)
    assert operators["branches.left"].traced and operators["branches.left"].gather_at == ("branches.left",)
    assert not operators["branches.right.0"].traced
    assert operators["branches.right.0"].gather_at == ("branches.right",)  # nn.Sequential has a forward
    assert not operators["unused"].traced and operators["unused"].gather_at == ("",)
    assert operators["unused"].split_shape is None
    other = by_name(osdp.describe(Scaled(), torch.randn(2, 4), left=False))
    assert not other["branches.left"].traced and other["branches.left"].gather_at == (
        "",
    )  # nn.ModuleDict has none


def test_a_half_used_module_is_gathered_whole_where_it_was_read() -> None:
    operator = by_name(osdp.describe(Scaled(), torch.randn(2, 4)))["pair"]
    assert [p.name for p in operator.parameters] == ["pair.used", "pair.spare"]
    assert operator.traced and operator.gather_at == ("pair",)


def test_zero_dimensional_parameters_and_modules_without_effect() -> None:
    operators = by_name(osdp.describe(Scaled(), torch.randn(2, 4)))
    assert operators[""].parameters[0].shape == () and operators[""].parameters[0].elements == 1
    assert "skip" not in operators


def test_nested_inputs_and_outputs_and_a_branch_on_an_integer_buffer() -> None:
    description = osdp.describe(Structured(), {"x": [torch.randn(2, 4)]}, bias=torch.randn(2, 4))
    assert by_name(description)["layer"].traced
    assert description.input_bytes_per_sample == 2 * 4 * 4


def test_a_model_on_the_meta_device_is_described_like_a_real_one() -> None:
    with torch.device("meta"):
        model = GPT()
        sample = tokens()
    assert all(p.is_meta for p in model.parameters())
    assert osdp.describe(model, tokens()) == osdp.describe(GPT(), tokens()) == osdp.describe(model, sample)
    assert all(p.is_meta for p in model.parameters())


def test_nothing_of_the_model_or_the_generators_changes() -> None:
    model = GPT(dropout=0.5)
    model.blocks[0].eval()
    model.norm.weight.requires_grad_(False)
    model.tokens.weight.grad = torch.ones_like(model.tokens.weight)
    before = copy.deepcopy(model)
    identities = {name: (id(p), p.data_ptr(), p._version) for name, p in model.named_parameters()}
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    description = osdp.describe(model, tokens())
    assert torch.equal(torch_state, torch.get_rng_state()) and python_state == random.getstate()
    assert identities == {name: (id(p), p.data_ptr(), p._version) for name, p in model.named_parameters()}
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), model.parameters(), strict=True))
    assert [m.training for m in before.modules()] == [m.training for m in model.modules()]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(model.tokens.weight.grad, torch.ones_like(model.tokens.weight))
    assert not by_name(description)["norm"].parameters[0].trainable


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_saved_bytes_are_those_of_a_real_forward(dropout: float) -> None:
    """The same hooks on real tensors: what autograd keeps, each storage once, parameters left out."""
    model = GPT(width=64, layers=2, vocabulary=100, context=32, dropout=dropout)
    sample = tokens(4, 32)
    with Watcher(model) as watcher:
        model(sample)
    real = sum(watcher.trace.saved_bytes.values())
    description = osdp.describe(model, sample)
    described = sum(4 * o.saved_bytes_per_sample + o.saved_bytes_fixed for o in description.operators)
    assert abs(described - real) <= 0.01 * real
    assert real > 4 * 32 * 64 * 4 * 10


@pytest.mark.parametrize(("width", "sequence"), [(16, 5), (64, 40)])
def test_an_lstm_saves_the_workspace_of_its_kernel(width: int, sequence: int) -> None:
    lstm, sample = (
        nn.LSTM(width, width, 2, batch_first=True, bidirectional=True),
        torch.randn(8, sequence, width),
    )
    with Watcher(lstm) as watcher:
        lstm(sample)
    real = sum(watcher.trace.saved_bytes.values())
    (operator,) = osdp.describe(lstm, sample).operators
    assert 8 * operator.saved_bytes_per_sample + operator.saved_bytes_fixed == pytest.approx(real, rel=0.1)


def test_what_does_not_grow_with_the_batch_is_told_apart() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            table = self.layer(torch.ones(10, 6)).exp()  # exp keeps its output, 10 x 6, whatever the batch
            return self.layer(x) * table.sum()

    operators = by_name(osdp.describe(Masked(), torch.randn(3, 6)))
    total_fixed = sum(o.saved_bytes_fixed for o in operators.values())
    assert total_fixed == 10 * 6 * 4 * 2 + 4  # the layer's input, exp's output, the sum that multiplies
    assert sum(o.saved_bytes_per_sample for o in operators.values()) == 6 * 4  # the product's; not the sample


def test_a_model_that_insists_on_its_batch_size_counts_everything_as_growing() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.view(2, 6)).exp()

    operators = by_name(osdp.describe(Picky(), torch.randn(2, 6)))
    assert operators[""].saved_bytes_per_sample == 6 * 4 and operators[""].saved_bytes_fixed == 0


def test_a_sample_of_one_is_described_by_larger_batches() -> None:
    class Expanding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(1, 3, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            table = self.table.exp().expand(len(x), 3, 8).reshape(-1, 8)  # copies, but not for a batch of 1
            return table * table.sigmoid() + x[:, :1]

    for batch in (1, 2, 5):
        (operator,) = osdp.describe(
            Expanding(), torch.randn(batch, 8).repeat_interleave(1, 0)[:, None]
        ).operators
        assert operator.saved_bytes_per_sample == 2 * 3 * 8 * 4 and operator.saved_bytes_fixed == 3 * 8 * 4


def test_a_model_for_single_samples_is_described_by_one() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.view(6)).exp()

    description = osdp.describe(Single(), torch.randn(1, 6))
    assert by_name(description)[""].saved_bytes_per_sample == 6 * 4 and description.sample_batch == 1
    assert by_name(description)["layer"].flops_per_sample == 2 * 36


class Masked(nn.Module):
    """Blocks that share a mask: all of them save it."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6, bias=False)

        def forward(self, x: torch.Tensor, mask: torch.Tensor, unread: torch.Tensor) -> torch.Tensor:
            return x + self.inner(x) * mask

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(self.Block() for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask, unread, x = x * 2, torch.ones(6), self.first(x)
        for block in self.blocks:
            x = block(x, mask, unread=unread)
        return x


def test_what_all_blocks_get_counts_once_and_outside_of_them() -> None:
    description = osdp.describe(Masked(), torch.randn(2, 6))
    operators = by_name(description)
    assert operators[""].saved_bytes_per_sample == 6 * 4 and operators[""].block is None  # the mask
    assert [operators[f"blocks.{i}.inner"].saved_bytes_per_sample for i in range(3)] == [6 * 4] * 3
    assert not any(f"blocks.{i}" in operators for i in range(3))  # which would have saved the mask
    # Each block keeps its own input. What nobody saves, each keeps a share of: 24 bytes over 3 blocks and 2 samples.
    assert [b.input_bytes_per_sample for b in description.blocks] == [6 * 4 + 4] * 3


def test_blocks_are_the_layers_and_know_their_inputs() -> None:
    description = osdp.describe(GPT(layers=3), tokens())
    assert [b.name for b in description.blocks] == ["blocks.0", "blocks.1", "blocks.2"]
    assert {b.input_bytes_per_sample for b in description.blocks} == {16 * 32 * 4}
    operators = by_name(description)
    assert operators["blocks.1.up"].block == "blocks.1" and operators["norm"].block is None


def test_only_plain_embeddings_can_be_computed_in_slices() -> None:
    class Special(nn.Embedding):
        pass

    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = nn.Embedding(6, 4, padding_idx=2)
            self.frozen = nn.Embedding(9, 4).requires_grad_(False)
            self.renormed = nn.Embedding(6, 4, max_norm=1.0)
            self.by_frequency = nn.Embedding(6, 4, scale_grad_by_freq=True)
            self.sparse = nn.Embedding(6, 4, sparse=True)
            self.bag = nn.EmbeddingBag(6, 4)
            self.special = Special(6, 4)
            self.read, self.read_by_a_special = nn.Embedding(6, 4), nn.Embedding(6, 4)
            self.special_head = nn.Linear(4, 6)
            self.special_head.weight = self.read_by_a_special.weight
            self.special_head.register_forward_hook(lambda module, args, output: output * 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tables = (self.plain, self.frozen, self.renormed, self.by_frequency, self.sparse, self.bag,
                      self.special, self.read)  # fmt: skip
            y = sum(table(x).sum() for table in tables) + (self.read.weight**2).sum()
            return self.special_head(self.read_by_a_special(x)) + y

    shapes = {
        o.name: o.split_shape for o in osdp.describe(Tables(), torch.zeros(2, 3, dtype=torch.long)).operators
    }
    assert {name for name, shape in shapes.items() if shape is not None} == {"plain", "frozen"}
    assert shapes["plain"] == (6, 4)


def test_only_plain_linears_can_be_computed_in_slices() -> None:
    class Special(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 6), Special(6, 6), nn.Linear(6, 6), nn.Linear(6, 1))
    model[2].register_forward_hook(lambda module, args, output: output * 2)
    shapes = {o.name: o.split_shape for o in osdp.describe(model, torch.randn(2, 4)).operators}
    assert shapes == {"0": (6, 4), "1": None, "2": None, "3": None}


def test_only_plain_convolutions_without_groups_can_be_computed_in_slices() -> None:
    class Special(nn.Conv1d):
        pass

    model = nn.Sequential(
        nn.Conv1d(4, 6, 3, padding_mode="circular", padding=1), nn.Conv1d(6, 6, 1, groups=3), Special(6, 6, 1),
        nn.ConvTranspose1d(6, 6, 1), nn.Conv1d(6, 4, 2, bias=False),
    )  # fmt: skip
    description = osdp.describe(model, torch.randn(2, 4, 8))
    shapes = {o.name: (o.split_shape, o.kernel_places) for o in description.operators if o.parameters}
    whole = (None, 0)
    assert shapes == {"0": ((6, 12), 3), "1": whole, "2": whole, "3": whole, "4": ((4, 12), 2)}
    with pytest.raises(osdp.InvalidProblemError, match="slices of its outputs alone"):
        osdp.Plan.uniform(description).replace({"0": osdp.Choice("FULL_SHARD", granularity=2, split="in")})


def test_complex_weights_and_those_whose_gradient_a_hook_sees_are_not_sliced() -> None:
    """Products in slices are of real numbers; a hook on a weight in slices would be called with None."""
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 6), nn.Conv1d(5, 4, 3), nn.Linear(4, 4))
    for layer in model[:3]:
        layer.weight.register_hook(lambda grad: grad * 2)
    model[3].weight.register_hook(lambda grad: grad).remove()
    numbers = nn.Sequential(nn.Linear(4, 6), nn.Conv1d(5, 4, 3)).to(torch.complex64)
    for each, sample, sliced in (
        (model, torch.zeros(2, 5, dtype=torch.long), {"3"}),
        (numbers, torch.randn(2, 5, 4, dtype=torch.complex64), set()),
    ):
        operators = osdp.describe(each, sample).operators
        assert {o.name for o in operators if o.split_shape is not None} == sliced


def test_without_a_sample_operators_are_gathered_at_their_parents() -> None:
    description = osdp.describe(GPT())
    operators = by_name(description)
    assert list(operators) == ["", "tokens", *(n for n in operators if n.startswith("blocks")), "norm"]
    assert not any(o.traced for o in description.operators) and description.sample_batch == 0
    assert (
        operators["blocks.0.up"].gather_at == ("blocks.0",) and operators["blocks.0.up"].block == "blocks.0"
    )
    assert operators["tokens"].gather_at == ("",)  # tied: gathered around all of its owners


def test_without_a_sample_weights_tied_across_parents_are_gathered_around_both() -> None:
    model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(3, 3)), "b": nn.Sequential(nn.Linear(3, 3))})
    model["b"][0].weight = model["a"][0].weight
    operators = by_name(osdp.describe(nn.Sequential(model)))
    assert operators["0.a.0"].gather_at == ("",)
    assert operators["0.b.0"].gather_at == ("0.b",)  # its bias


def test_a_failing_forward_names_the_module_and_keeps_the_cause() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(5, 4)))
    with pytest.raises(osdp.DescribeError, match=r"Linear '1\.1'") as caught:
        osdp.describe(model, torch.randn(2, 4))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_an_exception_that_the_model_catches_does_not_confuse_the_attribution() -> None:
    class Forgiving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wrong, self.right = nn.Linear(5, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.wrong(x)
            except RuntimeError:
                return self.right(x)

    operators = by_name(osdp.describe(nn.Sequential(Forgiving(), nn.Linear(4, 2)), torch.randn(2, 4)))
    assert operators["0.right"].gather_at == ("0.right",) and operators["1"].gather_at == ("1",)


def test_models_that_cannot_be_described() -> None:
    with pytest.raises(osdp.DescribeError, match="no parameters"):
        osdp.describe(nn.ReLU(), torch.randn(2))
    with pytest.raises(osdp.DescribeError, match="lazy"):
        osdp.describe(nn.LazyLinear(3), torch.randn(2, 2))
    with pytest.raises(osdp.DescribeError, match="empty"):
        osdp.describe(nn.Linear(2, 2), torch.randn(0, 2))
    with warnings.catch_warnings(action="ignore"):
        scripted = torch.jit.script(nn.Tanh())
    with pytest.raises(osdp.ShardingError, match=r"'1' was compiled by torch\.jit"):
        osdp.describe(nn.Sequential(nn.Linear(2, 2), scripted))


class Asking(nn.Module):
    """Asks its activations what to do, counts its calls, and draws random numbers, also from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rest = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.calls, self.seen, self.sums = 0, {"batches": [0]}, torch.zeros(())
        self.dice, self.noise = random.Random(1), torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen["batches"].append(len(x))
        self.sums.add_(self.dice.random())
        y = self.norm(self.layer(x)) + torch.rand(4) + torch.rand(4, generator=self.noise)
        return self.rest(y) if y.abs().sum().item() > 0 else y


def test_a_forward_that_asks_for_values_runs_for_real_and_leaves_no_traces() -> None:
    model, sample = Asking(), torch.randn(3, 4)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    drawn = model.dice.getstate(), model.noise.get_state()
    operators = by_name(osdp.describe(model, sample))
    assert operators["rest"].traced and operators["rest"].flops_per_sample == 2 * 16
    assert operators["norm"].saved_bytes_per_sample == 4 * 4  # the input of batch norm
    assert model.calls == 0 and torch.equal(state, torch.get_rng_state())
    assert model.seen == {"batches": [0]} and model.sums == 0
    assert model.dice.getstate() == drawn[0] and torch.equal(model.noise.get_state(), drawn[1])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(
        osdp.DescribeError, match="without a sample"
    ):  # on meta there are no values to ask for
        osdp.describe(model.to("meta"), sample)


def test_packed_sequences_need_their_lengths() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 3, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return self.lstm(packed)[1][0]

    (operator,) = osdp.describe(Packed(), torch.randn(2, 5, 4), torch.tensor([5, 3])).operators
    assert operator.gather_at == ("lstm",) and operator.traced


def test_parameters_behind_a_closure_are_still_the_models() -> None:
    class Closed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.call = lambda x: self.layer(x)  # a deep copy's closure still holds the original

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.call(self.call(x)))

    model = Closed()
    gradient = model.layer.weight.grad = torch.ones(4, 4)
    description = osdp.describe(model, torch.randn(2, 4))
    assert model.layer.weight.grad is gradient and torch.equal(gradient, torch.ones(4, 4))
    assert model.layer.bias.grad is None and description == osdp.describe(model, torch.randn(2, 4))
    operators = by_name(description)
    assert operators["layer"].traced and operators["layer"].gather_at == ("",)
    assert sum(o.saved_bytes_fixed for o in operators.values()) == 0


def held_weakly(layer: nn.Module) -> Callable[..., torch.Tensor]:
    me = weakref.ref(layer)
    return lambda x: type(me()).forward(me(), x)


def held_by_a_closure(layer: nn.Module) -> Callable[..., torch.Tensor]:
    forward = layer.forward
    return lambda x: forward(x)


def recomputed(layer: nn.Module) -> Callable[..., torch.Tensor]:
    forward = layer.forward
    return lambda x: checkpoint(forward, x, use_reentrant=True)


@pytest.mark.parametrize("replaced", [held_weakly, held_by_a_closure, recomputed])
def test_a_forward_that_is_still_the_originals_leaves_no_gradient_there(
    replaced: Callable[[nn.Module], Callable[..., torch.Tensor]],
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    described = by_name(osdp.describe(model, torch.randn(2, 4)))
    calls, before = [], copy.deepcopy(model.state_dict())
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(calls.append)
    for layer in model[1:]:
        layer.forward = replaced(layer)  # type: ignore[method-assign]
    operators = by_name(osdp.describe(model, torch.randn(2, 4)))
    assert not calls and all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for name in ("0", "1", "2"):
        assert operators[name].traced and operators[name].gather_at == described[name].gather_at


def test_tensors_kept_in_containers_and_made_from_parameters() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.scaled = self.layer.weight * 2  # not a leaf: cannot be deep-copied as it is
            self.cache = {"bias": [torch.randn(4)]}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.scaled) + self.cache["bias"][0]

    (operator,) = [o for o in osdp.describe(Keeping(), torch.randn(2, 4)).operators if o.parameters]
    assert not operator.traced


def test_a_sharded_model_is_refused() -> None:
    model = nn.Linear(2, 2)
    osdp.describe(model)
    HANDLES[model] = object()
    with pytest.raises(osdp.DescribeError, match=r"before osdp\.fully_shard"):
        osdp.describe(model)


def test_shared_modules_go_by_their_first_name() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    operators = by_name(osdp.describe(model, torch.randn(2, 4)))
    assert operators["0"].calls == 2 and operators["0"].parameters[0].aliases == ("2.weight",)
    assert operators["0"].split_shape == (4, 4)
    assert "2" not in operators


def test_marks_on_parameters_and_inputs_that_require_grad_survive() -> None:
    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.weight.twice = True  # type: ignore[attr-defined]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.requires_grad
            return x * self.weight * (2 if self.weight.twice else 1)  # type: ignore[attr-defined]

    osdp.describe(Marked(), torch.randn(2, 4, requires_grad=True))


def test_a_hook_that_replaces_a_blocks_arguments_does_not_write_into_them() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(self.up(x))

    model = nn.Sequential(Block(), Block())
    blocks = osdp.describe(model, torch.ones(2, 6)).blocks
    for block in model:
        block.register_forward_pre_hook(lambda module, args: tuple(a.double().float() for a in args))
    assert (
        [b.name for b in osdp.describe(model, torch.ones(2, 6)).blocks]
        == [b.name for b in blocks]
        == ["0", "1"]
    )


class Upcast(nn.Module):
    """Saves a copy of its input, not its input."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(x.double()).float()


def test_inputs_that_no_block_saves_do_not_accumulate() -> None:
    def work_of_head(blocks: int) -> int:
        model = nn.Sequential(nn.Linear(64, 64), *(Upcast() for _ in range(blocks)), nn.Linear(64, 1))
        head = osdp.describe(model, torch.randn(32, 64)).operators[-1]
        return head.work_bytes_per_sample * 32 + head.work_bytes_fixed

    assert work_of_head(2) == work_of_head(5) == work_of_head(12)


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.linear(x + time).tanh()


class WrittenLater(nn.Module):
    """Blocks get a tensor that forward writes to between them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Shifted() for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time = torch.zeros(4)
        for block in self.blocks:
            x = block(x, time)
            time += 1
        return x


def test_a_block_whose_input_is_written_to_later_is_not_recomputed() -> None:
    with pytest.warns(UserWarning, match=r"'blocks\.0' and 4 more changed its inputs"):
        assert osdp.describe(WrittenLater(), torch.zeros(2, 4)).blocks == ()
