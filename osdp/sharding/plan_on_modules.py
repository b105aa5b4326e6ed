"""What a plan puts on modules: hooks and forwards, so that their calls gather, compute and save as the plan says.

Also what says once that a training batch is larger than the one that the plan's memory and time are for.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from osdp import _C
from osdp.base.cast_floats import MoveInputs
from osdp.base.modules import is_conv1d, is_convolution, not_a_frame
from osdp.base.names import joined
from osdp.base.tensor_parallel import layout_of
from osdp.base.tensor_trees import batch_of
from osdp.base.warned import warn
from osdp.errors import ShardingError
from osdp.plan.mixed_precision import parameter_dtypes
from osdp.plan.plan import Plan
from osdp.sharding import split_embedding, split_linear
from osdp.sharding.divided_split import DividedSplit
from osdp.sharding.forward_methods import watch_methods
from osdp.sharding.gathering_calls import cover_forward, route_forward
from osdp.sharding.in_step import mark_modules
from osdp.sharding.init_after_to_empty import install_to_empty
from osdp.sharding.mixed_precision import install_precision
from osdp.sharding.module_changes import ModuleChanges
from osdp.sharding.parameter_settings import apply_settings
from osdp.sharding.recomputation import RecomputedBlock
from osdp.sharding.sharded_model import Sharded, sliced_modules
from osdp.sharding.split_convolution import split_convolution
from osdp.sharding.state_dict import show_full_parameters
from osdp.sharding.torch_patches.other_parallels import mark_for_others
from osdp.sharding.unit_calls import install_calls


def put_on_modules(model: nn.Module, sharded: Sharded) -> None:
    """Put the calls and forwards of `sharded.plan` on the modules of `model`, which have nothing of a plan yet, and the
    script's settings on its units; ModuleChanges has what to take off again."""
    plan, runtime, policy = sharded.plan, sharded.runtime, sharded.policy
    changes = ModuleChanges(model)
    mixed = parameter_dtypes(model, policy)
    calls, covering = install_calls(model, sharded, mixed)
    if policy is not None:
        sharded.buffer_dtypes = WeakKeyDictionary(install_precision(model, policy))
    if sharded.inputs_device is not None:
        model.register_forward_pre_hook(MoveInputs(sharded.inputs_device), prepend=True, with_kwargs=True)
    _install_splits(model, plan, sharded.index, runtime)
    _install_recomputation(model, plan)
    for module, hook, covers_it in covering:
        cover_forward(module, hook, covers_it)
    for module, hook, cover in calls:
        whole = module is model
        route_forward(
            module, hook, policy if whole else None, sharded.inputs_device if whole else None, cover
        )
    apply_settings(sharded)
    sharded.shown.clear()
    show_full_parameters(model, sharded)
    watch_methods(model, sharded)
    install_to_empty(model, sharded)
    watch_batch(model, plan)
    mark_for_others(model)
    mark_modules(model)
    changes.note()


def _install_splits(model: nn.Module, plan: Plan, index: dict[str, int], runtime: _C.Runtime) -> None:
    for name, places in sliced_modules(plan).items():
        choice = plan.choices[name]
        at = index[joined(name, "weight")]
        sizes = runtime.full_shape(at)
        rows, columns = sizes[:2]
        how = (choice.granularity, choice.split, runtime.source_of(at))
        for place in places:
            module: Any = model.get_submodule(place)
            # describe gives a split_shape to nothing else
            assert (
                isinstance(module, (nn.Linear, nn.Embedding)) or is_conv1d(module) or is_convolution(module)
            )
            layout = layout_of(module.weight)
            forward: Any
            if isinstance(module, nn.Embedding):
                if (
                    layout is not None
                    or module.max_norm is not None
                    or module.scale_grad_by_freq
                    or module.sparse
                ):
                    raise ShardingError(
                        f"{place!r} is an Embedding with max_norm, scale_grad_by_freq or sparse=True, or that "
                        "parallelize_module has divided, which cannot be computed in slices: give it granularity 1 in "
                        "the plan, or describe this model again"
                    )
                forward = split_embedding.SplitLookUp(
                    module.weight, rows, columns, module.padding_idx, *how, module._parameters
                )
            elif is_convolution(module):
                forward = split_convolution(module, sizes, choice.granularity, runtime.source_of(at))
            else:
                bias = module.bias if layout is None else None
                turned = is_conv1d(module)
                outputs, inputs = (columns, rows) if turned else (rows, columns)
                forward = split_linear.SplitCall(
                    module.weight,
                    bias,
                    outputs,
                    inputs,
                    *how,
                    transposed=turned,
                    parameters=module._parameters if layout is None else None,
                )
                if layout is not None:
                    forward = DividedSplit(module, layout, forward)
            # The call is replaced, not the module: hooks, class, names and parameters stay.
            module.forward = forward


def _install_recomputation(model: nn.Module, plan: Plan) -> None:
    for name in plan.recompute:
        block = model.get_submodule(name)
        block.forward = RecomputedBlock(name, block)


def watch_batch(model: nn.Module, plan: Plan) -> None:
    """Install the check where the plan was searched: plans made by hand are for no batch. Smaller batches, as an epoch's
    last, and those without gradients take less than planned."""
    if plan.searched is not None and os.environ.get("LOCAL_RANK", "0") == "0":
        watch = _Watch(plan.batch_size)
        model.register_forward_pre_hook(watch.before, with_kwargs=True)


class _Watch:
    def __init__(self, planned: int) -> None:
        self.planned = planned
        self.told = False
        not_a_frame(_Watch.before)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.told or torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        batch = batch_of((args, kwargs))
        if batch > self.planned:
            self.told = True
            warn(
                f"this batch has {batch} samples and the plan is for {self.planned} a rank: it needs more memory than was "
                f"planned, and another plan may be faster. Plan for it: osdp.search(..., batch_size={batch})"
            )
