# %% [markdown]
# # Planning GPT-2 XL for 8 GPUs, on a laptop
#
# Nothing here needs an accelerator, a process group or the model's weights: the model lives on the meta device, and
# the machine is a file of figures (the eight RTX TITAN of the OSDP paper). Sources: `examples/plan_gpt2_xl.py`.

# %%
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import osdp

config = GPT2Config(n_embd=1600, n_layer=48, n_head=25, use_cache=False)  # GPT-2 XL
with torch.device("meta"):
    model = GPT2LMHeadModel(config)
    tokens = torch.zeros(1, 1024, dtype=torch.long)

description = osdp.describe(model, input_ids=tokens, labels=tokens)
f"{len(description.operators)} operators, {description.parameter_bytes / 2**30:.2f} GiB of parameters"

# %% [markdown]
# ## The fastest plan that fits
#
# Optimizer state and gradients alone take four times the parameters: 23 GiB, more than one card has.
# `search` decides for every operator whether it is sharded, which blocks are recomputed, and the batch size. It proves
# that no plan of its search space is faster under the limit.

# %%
plan = osdp.search(description, memory="24GiB", world_size=8, hardware="rtx-titan-8")
plan

# %% [markdown]
# The proof is checked by code that shares nothing with the search; an empty text means that it holds.

# %%
osdp.verify(plan)

# %% [markdown]
# ## Why it is as it is

# %%
print(plan.explain(width=110))

# %% [markdown]
# ## What memory buys
#
# Every point is a whole search under that limit. The figure beside a point is its batch size per rank.

# %%
frontier = plan.frontier(limits=[f"{gib}GiB" for gib in (6, 8, 12, 16, 20, 24, 32, 40)])
print(frontier)
_ = frontier.plot()

# %% [markdown]
# ## Against sharding everything
#
# What FSDP does, found by the same search with only one mode to choose from and no slices: the best batch size and
# recomputation, but every operator sharded.

# %%
everything = osdp.search(
    description, memory="24GiB", world_size=8, hardware="rtx-titan-8", modes="FULL_SHARD", granularity=1
)
print(everything.diff(plan))

# %% [markdown]
# ## A plan is a file
#
# `osdp.fully_shard(model, osdp.Plan.load("gpt2-xl.json"))` obeys it, on any machine with 8 ranks. On the command line:
# `osdp explain gpt2-xl.json`.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "gpt2-xl.json")
    plan.save(path)
    assert osdp.Plan.load(path) == plan
    print(f"{path.name}: {path.stat().st_size / 2**10:.0f} KiB")
