"""Models that ask tensors what to do, and what is told of those that cannot be answered."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import osdp
from osdp.description.model_description import ModelDescription
from tests.unit.description.real_forward import saved_bytes

WIDTH, TOKENS = 8, 6


def used(description: ModelDescription) -> dict[str, bool]:
    return {o.name: o.traced for o in description.operators if o.parameters}


class Branching(nn.Module):
    """Takes the one layer where the mask is all ones, else the other; `ask` is how it looks."""

    def __init__(self, ask: str = "all") -> None:
        super().__init__()
        self.plain, self.masked = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ask = ask

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.ask == "all":
            plain = bool((mask == 1).all())
        elif self.ask == "item":
            plain = mask.sum().item() == mask.numel()
        elif self.ask == "list":
            plain = 0 not in mask.flatten().tolist()
        elif self.ask == "nonzero":
            plain = len((mask == 0).nonzero()) == 0
        else:
            plain = torch.equal(mask, torch.ones(TOKENS, dtype=torch.long).expand(len(x), TOKENS))
        return self.plain(x) if plain else self.masked(x)


@pytest.mark.parametrize("ask", ["all", "item", "list", "nonzero", "equal"])
@pytest.mark.parametrize("padding", [False, True])
def test_questions_to_a_mask_are_answered_without_weights(ask: str, padding: bool) -> None:
    with torch.device("meta"):
        model = Branching(ask)
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[:, -1] = 0 if padding else 1
    description = osdp.describe(model, torch.randn(2, TOKENS, WIDTH), mask)
    assert used(description) == {"plain": not padding, "masked": padding}


def test_a_random_number_decides_as_in_training_and_is_given_back() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if torch.rand([]) < 0.0 else self.layer(x)

    with torch.device("meta"):
        model = Dropped()
    sample, state = torch.randn(2, WIDTH), torch.get_rng_state()
    assert used(osdp.describe(model, sample)) == {"layer": True}
    assert torch.equal(state, torch.get_rng_state())


def test_the_samples_integers_and_the_models_are_not_written_to() -> None:
    class Counting(nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, WIDTH)
            self.register_buffer("seen", torch.zeros(10, dtype=torch.long))

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            index.add_(1)
            self.seen[index.flatten()] += 1
            return self.embedding(index) if self.seen.sum() > 0 else index

    model, index = Counting(), torch.zeros(2, 3, dtype=torch.long)
    assert used(osdp.describe(model, index)) == {"embedding": True}
    assert not model.seen.any() and not index.any()


def test_known_integers_that_unknown_ones_are_written_to_are_unknown() -> None:
    class Routed(nn.Module):
        """Writes what it chose, by activations, into integers made in the forward."""

        def __init__(self, asks: bool) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.asks = asks

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            chosen = torch.zeros(len(x), dtype=torch.long)
            chosen.copy_(y.argmax(-1))
            if self.asks and int(chosen.max()) > WIDTH:
                return x
            return y.gather(1, chosen[:, None]) * y.exp()

    sample = torch.randn(4, WIDTH)
    for asks in (False, True):  # fake throughout; then for real
        model = Routed(asks)
        description = osdp.describe(model, sample)
        kept = sum(4 * o.saved_bytes_per_sample + o.saved_bytes_fixed for o in description.operators)
        assert kept == saved_bytes(model, {"x": sample}) > 0
    with torch.device("meta"):
        silent, asking = Routed(False), Routed(True)
    assert used(osdp.describe(silent, sample)) == {"layer": True}
    with pytest.raises(osdp.DescribeError, match=r"Routed '' .*values"):
        osdp.describe(asking, sample)


def test_a_loss_that_is_summed_up_in_place_does_not_hide_the_integers() -> None:
    class Summing(Branching):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            loss = torch.zeros(())
            loss += super().forward(x, mask).sum()
            return loss

    with torch.device("meta"):
        model = Summing("all")
    description = osdp.describe(model, torch.randn(2, TOKENS, WIDTH), torch.ones(2, TOKENS, dtype=torch.long))
    assert used(description) == {"plain": True, "masked": False}


def test_what_asks_activations_on_the_meta_device_is_named() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if self.layer(x).sum().item() > 0 else -x

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Asking())
    expected = r"Asking '1' depends on the values of tensors .*on a real device.*without a sample"
    with pytest.raises(osdp.DescribeError, match=expected) as caught:
        osdp.describe(model, torch.randn(2, WIDTH))
    assert caught.value.__cause__ is not None
    assert [o.name for o in osdp.describe(model).operators] == ["0", "1.layer"]
    assert used(osdp.describe(model.to_empty(device="cpu"), torch.randn(2, WIDTH))) == {
        "0": True,
        "1.layer": True,
    }


def test_a_module_that_fails_after_a_failure_it_forgave_is_named_itself() -> None:
    class Forgiving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wrong = nn.Linear(WIDTH + 1, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.wrong(x)
            except RuntimeError:
                return x @ torch.ones(3, 3)

    with pytest.raises(osdp.DescribeError, match="Forgiving '1' failed"):
        osdp.describe(nn.Sequential(nn.Linear(WIDTH, WIDTH), Forgiving()), torch.randn(2, WIDTH))


def test_large_integers_are_fake_and_cost_nothing() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, WIDTH)

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            square = torch.arange(2**20)[:, None] < torch.arange(2**20)[None]  # a terabyte of booleans
            return self.embedding(index + square.sum())

    assert used(osdp.describe(Wide(), torch.zeros(2, 3, dtype=torch.long))) == {"embedding": True}


@torch.library.custom_op("osdp_tests::refusing", mutates_args=())
def refusing(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


@refusing.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("the kernel for fake tensors is stricter than the real one")


refusing.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


def test_operators_that_refuse_fake_tensors_run_for_real() -> None:
    class Refusing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return refusing(self.layer(x))

    model = Refusing()
    description = osdp.describe(model, torch.randn(4, WIDTH))
    assert used(description) == {"layer": True}
    assert sum(o.saved_bytes_per_sample for o in description.operators) == WIDTH * 4
    assert sum(o.saved_bytes_fixed for o in description.operators) == 0
    with pytest.raises(osdp.DescribeError, match=r"Refusing '' failed.*stricter"):
        osdp.describe(model.to("meta"), torch.randn(4, WIDTH))
