"""The small GPT that the examples of frameworks train."""

from __future__ import annotations

import transformers as hf

WORDS, LENGTH, SAMPLES = 256, 32, 4  # its vocabulary; of a sample; of a batch


def gpt() -> hf.GPT2LMHeadModel:
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=WORDS, n_positions=64, n_embd=64, n_layer=3, n_head=4, use_cache=False, **none
        )
    )
