"""The look-up in slices, against torch.nn.functional.embedding: values, gradients, protocol, errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from osdp.sharding.split_embedding import SplitLookUp
from tests.unit.allocations import peak_bytes
from tests.unit.sharding.split_helpers import DTYPES, TensorSource, stacked
from tests.unit.sharding.split_operators import split_embedding

ROWS, COLUMNS = 24, 12  # divisible by 1, 2, 3, 4; 5 and 7 leave a rest of the rows


@settings(max_examples=150, deadline=None)
@given(
    shape=st.sampled_from(((), (0,), (1,), (7,), (2, 3), (2, 0, 3), (5, 1, 4))),
    index_dtype=st.sampled_from((torch.int64, torch.int32)),
    dtype=st.sampled_from(DTYPES),
    cut=st.sampled_from([(s, g) for s in ("out", "in") for g in (1, 2, 3, 4)] + [("out", 5), ("out", 7)]),
    padding_idx=st.sampled_from((None, 0, 7, ROWS - 1)),
    words=st.sampled_from((1, 5, ROWS)),  # how many different rows are used, from the last one on
    with_source=st.booleans(),
    seed=st.integers(0, 3),
)
def test_same_as_embedding_whoever_holds_the_slices(
    shape: tuple[int, ...],
    index_dtype: torch.dtype,
    dtype: torch.dtype,
    cut: tuple[str, int],
    padding_idx: int | None,
    words: int,
    with_source: bool,
    seed: int,
) -> None:
    split, granularity = cut
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(ROWS, COLUMNS, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    indices = torch.randint(ROWS - words, ROWS, shape, generator=generator).to(index_dtype)
    expected = F.embedding(indices, table, padding_idx)
    seed_grad = torch.randn(expected.shape, generator=generator, dtype=torch.float64).to(dtype)
    (expected_grad,) = torch.autograd.grad(expected, table, seed_grad)

    source = TensorSource(table, granularity, split) if with_source else None
    held = table[:1].detach() if source else stacked(table.detach(), granularity, split)
    held.requires_grad_()
    y = split_embedding(
        indices, held, granularity=granularity, split=split, rows=ROWS, columns=COLUMNS,
        padding_idx=padding_idx, source=source.id if source else 0,
    )  # fmt: skip
    assert torch.equal(y, expected) and y.dtype == dtype and y.is_contiguous()
    if source is not None:
        order = [e for e in source.events if e[0] == "acquire"]
        following = [i + 1 if i + 1 < granularity else -1 for i in range(granularity)]
        assert order == [("acquire", i, n) for i, n in enumerate(following)]
        assert source.balanced() and source.most_held == 1
        source.events.clear()
    y.backward(seed_grad)
    # Rows are summed in the same order, so that the gradient is the same to the last bit.
    if source is None:
        assert torch.equal(held.grad, stacked(expected_grad, granularity, split))
        return
    assert held.grad is None
    assert source.events == [("put_grad", i) for i in reversed(range(granularity))]  # without a slice
    assert torch.equal(source.full_grad(), expected_grad)
    source.close()


@pytest.mark.parametrize("split", ("out", "in"))
def test_the_tables_accumulate_grad_node_runs_after_the_last_put_grad(split: str) -> None:
    source = TensorSource(torch.randn(ROWS, COLUMNS), 4, split)
    held = torch.full((1, COLUMNS), float("nan"), requires_grad=True)
    node = held.expand_as(held).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: source.events.append(("accumulated",)))
    look_up = SplitLookUp(held, ROWS, COLUMNS, None, 4, split, source.id)
    (look_up(torch.tensor([0, 5])) + look_up(input=torch.tensor([5, ROWS - 1]))).sum().backward()
    assert source.events.count(("accumulated",)) == 1 and source.events[-1] == ("accumulated",)
    assert source.full_grad().sum(1).tolist() == [
        COLUMNS * n for n in (1.0, *[0.0] * 4, 2.0, *[0.0] * (ROWS - 7), 1.0)
    ]
    source.close()


@pytest.mark.parametrize("split", ("out", "in"))
def test_a_functional_call_looks_up_what_it_gives(split: str) -> None:
    source, table, at = TensorSource(torch.randn(ROWS, COLUMNS), 4, split), torch.randn(ROWS, COLUMNS), [0, 5]
    embedding = torch.nn.Embedding(ROWS, COLUMNS, padding_idx=5)
    embedding.forward = SplitLookUp(  # type: ignore[method-assign]
        embedding.weight, ROWS, COLUMNS, 5, 4, split, source.id, embedding._parameters
    )
    found = torch.func.functional_call(embedding, {"weight": table}, (torch.tensor(at),))
    assert torch.equal(found, table[at]) and not source.events
    source.close()


@pytest.mark.parametrize("split", ("out", "in"))
def test_a_frozen_table_has_no_graph(split: str) -> None:
    held = stacked(torch.randn(ROWS, COLUMNS), 2, split)
    y = split_embedding(torch.tensor([1, 2]), held, granularity=2, split=split)
    assert not y.requires_grad


@pytest.mark.parametrize("split", ("out", "in"))
def test_differentiating_twice_is_refused_and_says_what_to_do(split: str) -> None:
    held = torch.randn(ROWS, COLUMNS).requires_grad_()
    y = split_embedding(torch.tensor([1, 2]), stacked(held, 2, split), granularity=2, split=split)
    (grad,) = torch.autograd.grad(y.square().sum(), held, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"split_embedding cannot.*granularity 1"):
        grad.sum().backward()


@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"granularity": 5, "split": "in", "rows": ROWS, "columns": COLUMNS}, "does not divide"),
        ({"granularity": ROWS + 1}, "is more than"),
        ({"granularity": 0}, "at least 1"),
        ({"indices": torch.tensor([0, ROWS])}, "an index 24"),
        ({"indices": torch.tensor([-1, 3])}, "an index -1"),
        ({"indices": torch.tensor([0, ROWS]), "split": "in"}, "index out of range"),
        ({"indices": torch.zeros(2)}, "expected Long or Int"),
        ({"weight": torch.zeros(ROWS, COLUMNS - 1), "columns": COLUMNS}, "weight is"),
        ({"source": 10**9}, "are required"),
        ({"split": "sideways"}, "sideways"),
    ),
)
def test_arguments_that_cannot_be_are_refused(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "indices": torch.tensor([0, 1]), "weight": torch.zeros(ROWS, COLUMNS), "granularity": 2, "split": "out",
    }  # fmt: skip
    with pytest.raises((ValueError, RuntimeError, TypeError, IndexError), match=message):
        split_embedding(**(arguments | change))


@pytest.mark.parametrize("split", ("out", "in"))
def test_meta_tensors_have_the_shapes(split: str) -> None:
    held = stacked(torch.empty(ROWS, COLUMNS, device="meta"), 3, split).requires_grad_()
    indices = torch.zeros(2, 5, dtype=torch.long, device="meta")
    y = split_embedding(indices, held, granularity=3, split=split)
    y.sum().backward()
    assert y.shape == (2, 5, COLUMNS) and held.grad.shape == held.shape


class Made(TensorSource):
    """Makes a fresh slice at each acquire, as a gather does, and drops the gradients, as a reduction does."""

    def release(self, index: int) -> None:
        del self.held[index]

    def put_grad(self, index: int, grad: Tensor) -> None:
        pass


@pytest.mark.parametrize("split", ("out", "in"))
def test_peak_is_the_result_and_a_slice_and_its_copy(split: str) -> None:
    """Also where one slice has all the words."""
    rows, columns, g, n = 4096, 64, 8, 16384
    source = Made(torch.randn(rows, columns), g, split)
    held = torch.zeros(1, columns, requires_grad=True)
    indices = torch.randint(rows // g, (n,))
    look_up = SplitLookUp(held, rows, columns, None, g, split, source.id)
    result, one_slice, of_indices = n * columns * 4, rows * columns * 4 // g, 8 * n
    outputs = [look_up(indices)]
    outputs.clear()
    assert peak_bytes(lambda: outputs.append(look_up(indices))) <= result + 2 * one_slice + 5 * of_indices
    y, gradient = outputs.pop(), torch.randn(n, columns)
    copied = result // g if split == "in" else 0
    assert peak_bytes(lambda: y.backward(gradient)) <= one_slice + copied + 5 * of_indices
    source.close()


def test_look_up_replaces_the_call_of_an_embedding_and_nothing_else() -> None:
    embedding = nn.Embedding(ROWS, COLUMNS, padding_idx=-1)
    indices = torch.tensor([[0, ROWS - 1], [5, 5]])
    expected = embedding(indices)
    (expected_grad,) = torch.autograd.grad(expected.sum(), embedding.weight)
    source = TensorSource(embedding.weight, 3, "out")
    weight = embedding.weight
    look_up = SplitLookUp(weight, ROWS, COLUMNS, embedding.padding_idx, 3, "out", source.id)
    embedding.forward = look_up  # type: ignore[method-assign]
    weight.data = weight.data[:2].clone()  # the shard
    assert torch.equal(embedding(indices), expected) and dict(embedding.named_parameters()) == {
        "weight": weight
    }
    embedding(indices).sum().backward()
    assert weight.grad is None and torch.equal(source.full_grad(), expected_grad)
    assert repr(look_up) == (
        f"SplitLookUp(rows={ROWS}, columns={COLUMNS}, granularity=3, split='out', source={source.id})"
    )
    source.close()
