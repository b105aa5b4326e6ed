"""Manifests of a pipeline's stages, put together and taken apart."""

from __future__ import annotations

import pytest

from osdp.checkpoint.manifest import Group, Manifest, OptimizerEntry, TensorEntry
from osdp.checkpoint.stages import merged, names_of, part_of
from osdp.errors import ShardingError

ENTRY = TensorEntry((2,), "float32")


def manifest(parameters: str, buffers: str = "", lr: float = 0.1, kind: str = "SGD") -> Manifest:
    names = tuple(parameters)
    states = {name: {"momentum": ENTRY} for name in names}
    optimizer = OptimizerEntry(kind, (Group(names, {"lr": lr}),), states, {name: {} for name in names})
    return Manifest(dict.fromkeys(names, ENTRY), dict.fromkeys(buffers, ENTRY), optimizer)


def first_of(ranks: dict[int, Manifest]) -> Manifest:
    return next(iter(ranks.values()))


def test_stages_are_one_model_and_each_takes_its_part_again():
    ranks = [manifest("ab", "x"), manifest("ab", "x"), manifest("c", "x", lr=0.2), manifest("d", "y")]
    whole = merged(ranks, first_of)
    assert list(whole.parameters) == ["a", "b", "c", "d"] and list(whole.buffers) == ["x", "y"]
    assert whole.optimizer is not None
    assert [(g.parameters, g.options["lr"]) for g in whole.optimizer.groups] == [
        (("a", "b", "d"), 0.1),
        (("c",), 0.2),
    ]
    everyones = [names_of(rank) for rank in ranks]
    for rank in ranks:
        part = part_of(whole, names_of(rank), everyones)
        assert (part.parameters, part.buffers, part.optimizer) == (
            rank.parameters,
            rank.buffers,
            rank.optimizer,
        )


def test_what_no_stage_has_is_left_for_each_to_refuse():
    saved = manifest("abz", "x")
    part = part_of(
        saved, names_of(manifest("a", "x")), [names_of(manifest("a", "x")), names_of(manifest("b"))]
    )
    assert list(part.parameters) == ["a", "z"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (manifest("bc"), "parameter b"),
        (manifest("c", kind="AdamW"), "SGD and AdamW"),
        (Manifest({"c": ENTRY}, {}, None), "only some stages"),
    ],
)
def test_stages_that_do_not_fit_together(other: Manifest, message: str):
    with pytest.raises(ShardingError, match=message):
        merged([manifest("ab"), other], first_of)
