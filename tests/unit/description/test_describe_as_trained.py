"""A model of transformers is described as it trains: without the cache of generation, whatever its config says."""

from __future__ import annotations

import pytest
import torch

import osdp

transformers = pytest.importorskip("transformers")


def test_blocks_can_be_recomputed_and_the_model_stays_as_it_was() -> None:
    from osdp.integrations.transformers import describe

    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    batch = {name: torch.zeros(2, 16, dtype=torch.long) for name in ("input_ids", "labels")}
    with pytest.warns(UserWarning, match="changed its inputs"):
        cached = osdp.describe(model, **batch)
    assert cached.blocks == () and cached.blocks_changing_inputs == ("transformer.h.0", "transformer.h.1")
    with pytest.raises(osdp.InfeasibleError, match=r"'transformer\.h\.0'.*use_cache=False"):
        osdp.search(cached, memory="10KiB", world_size=2, hardware="rtx-titan-8")
    trained = describe(model, **batch, precision="bf16")
    assert [b.name for b in trained.blocks] == list(cached.blocks_changing_inputs)
    assert trained.precision == "bf16" and trained.blocks_changing_inputs == ()
    assert config.use_cache and not any(m.training for m in model.modules())
