"""Models of the transformers library under their own plans of tensor parallelism, and in stages: those of one process."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import: it must not ask the network for anything
import pytest
import torch
import transformers as hf
from harness import Member
from support.pair import close, naming
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import osdp

WORDS, TOKENS, SAMPLES = 96, 16, 4
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"vocab_size": WORDS, "max_position_embeddings": 64, "intermediate_size": 64, "head_dim": 8}
SIZES |= {"attention_dropout": 0.0, "tie_word_embeddings": False, "pad_token_id": 0}
EXPERTS = {
    "experts_implementation": "eager",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
LATENT |= {
    "n_group": 2,
    "topk_group": 1,
    "n_routed_experts": 4,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
# Norms of heads ("replicated_with_grad_allreduce"): qwen3. Embeddings of a class of its own: gemma2. Inputs that each rank
# has whole ("rowwise_split_input"): phi3, olmo2.
MODELS = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**SIZES)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**SIZES)),
    "olmo2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**SIZES)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**SIZES, **EXPERTS)),
    "qwen3 moe": lambda: hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**SIZES, **EXPERTS)),
    "deepseek v3": lambda: hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**SIZES | LATENT, **EXPERTS)),
}


def batch(step: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(100 + step)
    words = torch.randint(1, WORDS, (SAMPLES, TOKENS + 1))
    return words[:, :-1], words[:, 1:]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1).double(), targets.flatten())


def trains(me: Member, name: str) -> None:
    for tensor, pipeline in ((2, 1), (1, 2)):
        with naming(f"{tensor} x {pipeline}"):
            models = []
            for seed in (me.rank, 0):
                torch.manual_seed(seed)
                models.append(MODELS[name]().double())
            model, whole = models
            sample = {"input_ids": batch(0)[0][:1], "use_cache": False}
            plan = me.once(
                lambda m=model, t=tensor, p=pipeline, s=sample: osdp.search(
                    *(m, s),
                    memory="8GiB",
                    world_size=me.world,
                    hardware="a100-8",
                    global_batch_size=SAMPLES,
                    batch_size=2,
                    tensor_parallel=t,
                    pipeline_parallel=p,
                )
            )
            pipe = osdp.parallelize(model, plan, loss_of)
            optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (pipe.module, whole)]
            for step in range(2):
                tokens, targets = batch(step)
                found = pipe.step(input_ids=tokens, use_cache=False, target=targets)
                wanted = loss_of(whole(input_ids=tokens, use_cache=False).logits, targets)
                wanted.backward()
                torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-6, atol=0)
                for optimizer in optimizers:
                    optimizer.step(), optimizer.zero_grad()
            values = whole.state_dict()
            for key, value in pipe.module.state_dict().items():
                full = value.full_tensor() if isinstance(value, DTensor) else value
                close(full, values[key], 1e-6, key)  # norms and positions are computed in float32


@pytest.mark.parametrize("name", MODELS)
def test_degrees_train_as_one_process(ranks, name):
    ranks(trains, name, world=2)
