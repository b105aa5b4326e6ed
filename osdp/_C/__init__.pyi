"""
The C++ of osdp: elementwise loops, the split matrix product, the sharding runtime.
"""

from __future__ import annotations

import collections.abc
import datetime
import typing

import torch

from . import elementwise

__all__: list[str] = [
    "CallHook",
    "Collectives",
    "HEARTBEAT_MARGIN_S",
    "Mode",
    "ParamSpec",
    "Piece",
    "Runtime",
    "SplitCall",
    "SplitConvolution",
    "SplitLookUp",
    "SplitSpec",
    "UnitSpec",
    "Work",
    "accelerators_in",
    "await_backwards",
    "begin_backwards",
    "buffers_in",
    "call_recomputed",
    "check_asked",
    "connect_part",
    "count_registration",
    "elementwise",
    "end_group",
    "ends_of_graph",
    "has_reducer",
    "host_identity",
    "memory_live_bytes",
    "memory_meter_install",
    "memory_peak_bytes",
    "memory_reset_peak",
    "name_ranks",
    "norm_over_ranks",
    "owners_of",
    "process_ended",
    "register_source",
    "set_error_types",
    "set_python_functions",
    "set_ranks_of_part",
    "shutdown",
    "start_heartbeat",
    "this_process",
    "timeout_of",
    "unregister_source",
    "versions_in",
    "watch_tree",
]

class SplitCall:
    """
    The product of an nn.Linear with weight [out_features, in_features], computed in `granularity` slices along out (split='out' or 0) or in ('in' or 1); called like nn.Linear.forward. `source`: an id from register_source, 0: the slices of `weight` itself. `transposed`: the weight is [in_features, out_features]. `parameters`: the module's `_parameters`; another weight or bias that is found there is used in its place.
    """
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        out_features: typing.SupportsInt | typing.SupportsIndex,
        in_features: typing.SupportsInt | typing.SupportsIndex,
        granularity: typing.SupportsInt | typing.SupportsIndex,
        split: typing.Any,
        source: typing.SupportsInt | typing.SupportsIndex = 0,
        transposed: bool = False,
        parameters: typing.Any = None,
    ) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def granularity(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def split(self) -> int: ...

class SplitLookUp:
    """
    The look-up of an nn.Embedding with weight [rows, columns], computed in `granularity` slices of its rows (split='out' or 0) or columns ('in' or 1); called like nn.Embedding.forward. `source` and `parameters`: as of SplitCall.
    """
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
    def __init__(
        self,
        weight: torch.Tensor,
        rows: typing.SupportsInt | typing.SupportsIndex,
        columns: typing.SupportsInt | typing.SupportsIndex,
        padding_idx: typing.SupportsInt | typing.SupportsIndex | None,
        granularity: typing.SupportsInt | typing.SupportsIndex,
        split: typing.Any,
        source: typing.SupportsInt | typing.SupportsIndex = 0,
        parameters: typing.Any = None,
    ) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def granularity(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def split(self) -> int: ...

class SplitConvolution:
    """
    The call of a convolution with weight `sizes`, computed in `granularity` slices of its outputs; called like nn.Conv2d.forward. `pad`, `pad_mode`: what is padded before it, as by torch.nn.functional.pad. `source` and `parameters`: as of SplitCall.
    """
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        sizes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        stride: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        padding: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        dilation: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        pad: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        pad_mode: str,
        granularity: typing.SupportsInt | typing.SupportsIndex,
        source: typing.SupportsInt | typing.SupportsIndex,
        parameters: typing.Any = None,
    ) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def granularity(self) -> int: ...
    @property
    def source(self) -> int: ...

class Work:
    """
    A task submitted to a lane.
    """
    def wait(self) -> None:
        """
        Blocks until the task has run (on an accelerator: makes the current stream wait for it). Raises the task's exception.
        """
    @property
    def done(self) -> bool:
        """
        Whether the task has run, without blocking.
        """
    @property
    def seconds(self) -> float:
        """
        Seconds that the task ran; 0 on accelerators, and before it is done.
        """

class Collectives:
    """
    Collectives of a process group (by name; only this package may use the group) on its lane: see csrc/comm/collectives.hpp. Every rank must make the same calls. Each call blocks until it has run; raises RankError or OrderError if another rank died, hangs or runs another collective. Tensors are flat, contiguous and on `device`.
    """
    def __init__(self, group: str, device: torch.device) -> None: ...
    def all_bytes(self, label: str, mine: str) -> list:
        """
        Every rank's bytes, in rank order; lengths may differ. `label` names the purpose in errors and must be equal on all ranks.
        """
    def all_gather(
        self,
        outputs: collections.abc.Sequence[torch.Tensor],
        inputs: collections.abc.Sequence[torch.Tensor],
        label: str = "all-gather",
    ) -> None:
        """
        Gathers all ranks' inputs[i] [n] into outputs[i] [world * n], in rank order, for each i. `label` names the collective in errors and must be equal on all ranks.
        """
    def all_reduce_mean(self, tensors: collections.abc.Sequence[torch.Tensor]) -> None:
        """
        Replaces each tensor by its mean over ranks.
        """
    def broadcast(self, tensors: collections.abc.Sequence[torch.Tensor]) -> None:
        """
        Replaces each tensor by rank 0's, of any dtype and layout.
        """
    def reduce_scatter_mean(
        self, outputs: collections.abc.Sequence[torch.Tensor], inputs: collections.abc.Sequence[torch.Tensor]
    ) -> None:
        """
        outputs[i] [n] = this rank's chunk of the mean over ranks of inputs[i] [world * n], for each i. The inputs are overwritten.
        """
    def submit_all_reduce_mean(self, tensors: collections.abc.Sequence[torch.Tensor]) -> Work:
        """
        all_reduce_mean without blocking: the tensors hold the means once the Work is done.
        """
    @property
    def has_memory(self) -> bool:
        """
        Whether the backend can allocate tensors for its collectives on this device.
        """
    @property
    def transport(self) -> str:
        """
        What carries the bytes: 'shared memory', 'sockets' or the backend's name.
        """

class CallHook:
    """
    The hooks of one module's calls: `before` and `after` are registered as forward hooks.
    """
    def __deepcopy__(self, arg0: typing.Any) -> None: ...
    def __reduce_ex__(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> tuple: ...
    def abandon(self) -> None:
        """
        Ends the call, of which no hook ran any more, as failed.
        """
    def after(self, arg0: typing.Any, arg1: tuple, arg2: dict, arg3: typing.Any) -> None: ...
    def before(self, arg0: typing.Any, arg1: tuple, arg2: dict) -> None: ...
    def begins_forward(self) -> bool: ...
    def hold(
        self,
        parameters: dict,
        leaf: typing.Any,
        parameter: typing.Any,
        index: typing.SupportsInt | typing.SupportsIndex,
    ) -> None:
        """
        Tells the hook where a parameter (of this index) is found: parameters[leaf] of the module that owns it. A call in which another tensor is found there is refused unless it has the full shape.
        """

class Mode:
    """
    Members:

      NO_SHARD

      SHARD_GRAD_OP

      FULL_SHARD

      HYBRID_SHARD

      FULL_SHARD_OFFLOAD

      HYBRID_SHARD_OFFLOAD

      FULL_SHARD_HIERARCHICAL

      FULL_SHARD_HPZ
    """

    FULL_SHARD: typing.ClassVar[Mode]
    FULL_SHARD_HIERARCHICAL: typing.ClassVar[Mode]
    FULL_SHARD_HPZ: typing.ClassVar[Mode]
    FULL_SHARD_OFFLOAD: typing.ClassVar[Mode]
    HYBRID_SHARD: typing.ClassVar[Mode]
    HYBRID_SHARD_OFFLOAD: typing.ClassVar[Mode]
    NO_SHARD: typing.ClassVar[Mode]
    SHARD_GRAD_OP: typing.ClassVar[Mode]
    __members__: typing.ClassVar[dict[str, Mode]]
    def __eq__(self, other: typing.Any) -> bool: ...
    def __getstate__(self) -> int: ...
    def __hash__(self) -> int: ...
    def __index__(self) -> int: ...
    def __init__(self, value: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def __int__(self) -> int: ...
    def __ne__(self, other: typing.Any) -> bool: ...
    def __repr__(self) -> str: ...
    def __setstate__(self, state: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def __str__(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class SplitSpec:
    """
    A weight [out, in] in `granularity` slices along out (dim=0) or in (dim=1), the last `sharded` of them sharded.
    """
    def __init__(
        self,
        granularity: typing.SupportsInt | typing.SupportsIndex,
        sharded: typing.SupportsInt | typing.SupportsIndex,
        dim: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class ParamSpec:
    """
    A parameter to shard: its name, its tensor (the full value, equal on all ranks), its slices, and the dtypes in which it is computed with and its gradient reduced (None: its own). With `full_sizes`, its full shape, the tensor is empty and its value comes later: the runtime allocates this rank's part, in host memory if `offload`.
    """
    def __init__(
        self,
        name: str,
        tensor: torch.Tensor,
        split: SplitSpec | None = None,
        full_sizes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None = None,
        compute: torch.dtype | None = None,
        reduce: torch.dtype | None = None,
        offload: bool = False,
        local: torch.Tensor | None = None,
    ) -> None: ...

class UnitSpec:
    """
    Parameters (by index) that are gathered and reduced together, and their mode.
    """
    def __init__(
        self,
        name: str,
        mode: Mode,
        params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> None: ...

class Piece:
    """
    A block of a full tensor, and its position in this rank's local tensor.
    """
    def view(self, local: torch.Tensor) -> torch.Tensor:
        """
        The view of this block in a tensor of the local shape (the parameter, its gradient or state).
        """
    @property
    def global_offsets(self) -> tuple: ...
    @property
    def replicated(self) -> bool: ...
    @property
    def sizes(self) -> tuple: ...

class Runtime:
    """
    Runs the training steps of one sharded model; see csrc/runtime/runtime.hpp. `group` and the other groups are names; `model` is a number that the ranks have agreed on. Shards the parameters in place. Raises ShardingError, before anything is changed, if a spec is invalid.
    """

    part: bool
    sync: bool
    @staticmethod
    def share_version(tensor: torch.Tensor, source: torch.Tensor) -> None:
        """
        Writes to either count as writes to both: torch counts those to a wrapper of a tensor as the wrapper's.
        """
    def __init__(
        self,
        group: str,
        device: torch.device,
        params: collections.abc.Sequence[ParamSpec],
        units: collections.abc.Sequence[UnitSpec],
        model: typing.SupportsInt | typing.SupportsIndex,
        shard_group: str = "",
        replicate_group: str = "",
        backend_memory: bool = False,
        reductions_group: str = "",
        shard_reductions_group: str = "",
        between_group: str = "",
    ) -> None: ...
    def add_call(
        self,
        module: str,
        params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        root: bool,
        hold: bool,
        method: bool = False,
        alone: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = [],
    ) -> CallHook:
        """
        The hook of a module's calls, which gather `params`. `alone`: what only a call outside of the model's needs; within it, a call around this one has gathered them.
        """
    def arena_bytes(self) -> int:
        """
        Bytes of the memory reserved to gather into.
        """
    def await_unsharded(
        self, params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
    ) -> None:
        """
        Waits for `unshard`; between passes these parameters show their full values then, to be read: Note [What unshard() shows].
        """
    def clip_grad_norm(
        self,
        max_norm: typing.SupportsFloat | typing.SupportsIndex,
        norm_type: typing.SupportsFloat | typing.SupportsIndex,
        error_if_nonfinite: bool,
        parts: collections.abc.Sequence[Runtime],
    ) -> torch.Tensor: ...
    def copied_bytes(self) -> int:
        """
        Bytes of the NO_SHARD parameters' copies in their compute dtype that exist now.
        """
    def end_read_only(self) -> None:
        """
        What await_unsharded shows ends: parameters show this rank's rows. Raises as `reshard`.
        """
    def full_shape(self, param: typing.SupportsInt | typing.SupportsIndex) -> list[int]: ...
    def gather_whole(
        self, param: typing.SupportsInt | typing.SupportsIndex, local: torch.Tensor
    ) -> torch.Tensor:
        """
        The full tensor of which `local` (of the local shape) is this rank's part. Collective. Raises ShardingError inside a forward or backward.
        """
    def gathered_bytes(self) -> int:
        """
        Bytes of the full tensors that are gathered now.
        """
    def is_whole(self, param: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether every rank holds all of it.
        """
    def join(self, label: str, params: collections.abc.Sequence[ParamSpec]) -> None:
        """
        Adds parameters that the model gained, as NO_SHARD. Raises ShardingError within a step.
        """
    def keep_node(self, param: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        After Tensor.set_: its gradients go where they went before.
        """
    def let_go(self) -> None:
        """
        Reshards the units that stay gathered and have a parameter that an optimizer may step. Raises as `reshard`.
        """
    def name(self, param: typing.SupportsInt | typing.SupportsIndex) -> str: ...
    def on_pass(self, place: typing.Any) -> None:
        """
        From now on `place` is called with True when a pass has shown its parameters in full, and with False when they show this rank's part again.
        """
    def owner_of(self, tensor: torch.Tensor) -> tuple[int, bool] | None:
        """
        Index of the parameter whose memory the tensor shares, and whether it is whole; None: of no parameter.
        """
    def pieces(self, param: typing.SupportsInt | typing.SupportsIndex) -> list[Piece]:
        """
        The blocks of the full tensor that this rank holds.
        """
    def reduce_kept(self) -> None:
        """
        Reduces the gradients that were kept under no_sync, between steps. Collective. Raises ShardingError within a step, and while `sync` is False.
        """
    def regroup(self, units: collections.abc.Sequence[UnitSpec]) -> None:
        """
        Replaces the units, and ends the calls, of the same parameters; the rows of each stay. Raises ShardingError, before anything is changed, where they would not, and within a step.
        """
    def reset_statistics(self) -> None: ...
    def reshard(self, params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        Reshards the units that hold these parameters and are not in use. Raises ShardingError if one was written to while it was shown to be read.
        """
    def saw_tree(self) -> None:
        """
        Records that the model's tree has been compared after all registrations so far.
        """
    def set_absent(self, params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        Sets which parameters (indices) were removed from the model.
        """
    def set_budget(self, sentence: str) -> None:
        """
        Sets the sentence about the plan's prediction in the text of OutOfMemoryError.
        """
    def set_gathers_in_backward(
        self, params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], gathers: bool
    ) -> None:
        """
        False: backward does not gather them, since it reads none of them.
        """
    def set_gradient_scale(
        self,
        param: typing.SupportsInt | typing.SupportsIndex,
        scale: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None:
        """
        Every new gradient of the parameter is multiplied by `scale` before it is averaged over the ranks.
        """
    def set_prefetch(
        self,
        units: typing.SupportsInt | typing.SupportsIndex,
        budget_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None:
        """
        How far ahead units are gathered: within the memory of 1 + `units` units of the largest size, or of `budget_bytes` if that is less and not 0.
        """
    def set_stays_after_backward(
        self, params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], stays: bool
    ) -> None: ...
    def set_stays_after_forward(
        self, params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], stays: bool
    ) -> None:
        """
        Whether the units that hold these parameters stay gathered after a forward; until then as their mode says.
        """
    def set_stays_if_kept(
        self, params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], stays: bool
    ) -> None:
        """
        The same, where that was not set and the unit's mode keeps it from forward to backward.
        """
    def set_sync_of(
        self, params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], sync: bool
    ) -> None:
        """
        Whether backward reduces the gradients of these parameters, or keeps this rank's own as within no_sync.
        """
    def show_full(
        self, params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], keep: bool
    ) -> list[int]:
        """
        Gives those of the parameters that show this rank's part their full values, without gradients; returns which these are. Collective. `keep`: a module may be called meanwhile, with what was written until then.
        """
    def show_local(
        self, params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], writeback: bool
    ) -> None:
        """
        Ends show_full for them. `writeback`: this rank's part of what was written is kept.
        """
    def source_of(self, param: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        The id that SplitCall takes as `source`, for a split weight.
        """
    def statistics(self) -> dict:
        """
        Counts since the last reset: gathers, gathered_bytes, prefetches, reductions, reduced_bytes, sent_bytes (by this rank over OSDP's own transports).
        """
    def summon(self, with_grads: bool) -> None:
        """
        Gives all parameters (and their gradients) their full values. Collective. Raises ShardingError if they have them already.
        """
    def suspect_replicas(self) -> None:
        """
        Has the replicas compared at the next forward, which raises ReplicaError if they differ.
        """
    def take_local(
        self, param: typing.SupportsInt | typing.SupportsIndex, full: torch.Tensor
    ) -> torch.Tensor:
        """
        This rank's part of a tensor of the full shape: a copy, or `full` itself if the parameter is whole.
        """
    def uninstall(self) -> None:
        """
        Turns the gradient hooks off, after fully_shard has failed and the model was restored.
        """
    def unreduced(
        self, among: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
    ) -> int | None:
        """
        Index of the first of these parameters with a gradient kept under no_sync that was neither reduced nor dropped since; None: none.
        """
    def unshard(
        self, params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], wait: bool
    ) -> None:
        """
        Begins to gather the units that hold these parameters (indices); they stay gathered: Note [Units that stay gathered]. Collective. Raises ShardingError while parameters are shown in full.
        """
    def unsummon(self, writeback: bool) -> None:
        """
        Ends summon. `writeback`: this rank's part of what was written is kept.
        """
    def wrap_parameters(
        self,
        given: collections.abc.Sequence[
            tuple[
                typing.SupportsInt | typing.SupportsIndex,
                torch.Tensor,
                typing.Any,
                typing.Any,
                typing.Any,
                collections.abc.Sequence[tuple[dict, typing.Any]],
            ]
        ],
    ) -> None:
        """
        From now on modules find wrappers in the place of parameters during passes: Note [Parameters of tensor parallelism]. For each: index, the inner tensor, the wrapper, its placements, a function that gives the local part of a gradient in other placements, and the places (parameters, key).
        """
    @property
    def any_stays(self) -> bool: ...
    @property
    def in_pass(self) -> bool:
        """
        Whether a call of the model or a backward is in progress.
        """
    @property
    def kept_unreduced(self) -> bool:
        """
        Whether the last backward kept gradients under no_sync.
        """
    @property
    def prefetch(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def rank_name(self) -> str:
        """
        What errors call this rank: its number in the job, and its stage of a pipeline.
        """
    @property
    def step_seconds(self) -> list[float]:
        """
        Seconds between the beginnings of consecutive training forwards: the last 1000.
        """
    @property
    def summoned(self) -> bool: ...
    @property
    def tree_changed(self) -> bool: ...
    @property
    def world(self) -> int: ...

def accelerators_in(tree: typing.Any) -> list[tuple[str, int]]:
    """
    (type, index) of the devices other than the CPU and meta on which tensors in `tree` are, each once, sorted.
    """

def await_backwards() -> None:
    """
    Blocks, after an exception in a backward, until every model is restored: see Note [A backward that ends elsewhere].
    """

def begin_backwards(gradient: torch.Tensor) -> None:
    """
    A hook for a gradient that was computed with create_graph=True: see Note [Backward of a backward].
    """

def buffers_in(module: typing.Any) -> list:
    """
    (module, name) for each buffer of `module` and the modules in it, each once.
    """

def call_recomputed(
    name: str, forward: typing.Any, again: typing.Any, args: tuple, kwargs: dict
) -> typing.Any:
    """
    forward(*args, **kwargs), whose tensors for backward are not saved: a backward that needs them calls again(args, kwargs), which calls forward once more. An exception ends that call once all are there.
    """

def check_asked(tensors: collections.abc.Sequence[torch.Tensor]) -> None:
    """
    Raises ShardingError if torch.autograd.grad of these would be this rank's own gradients: see Note [Gradients that are asked for].
    """

def connect_part(part: str, device: torch.device) -> None:
    """
    Connects the ranks of a part (a line or column of ranks) for its collectives. Collective over the part.
    """

def count_registration(arg0: typing.Any, arg1: typing.Any, arg2: typing.Any) -> None:
    """
    The hook for torch.nn.modules.module.register_module_{module,parameter,buffer}_registration_hook.
    """

def end_group(group: str) -> None:
    """
    Ends a group's heartbeat, lanes and transport, before the group is destroyed; see csrc/comm/ending.hpp.
    """

def ends_of_graph(tensors: collections.abc.Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """
    The tensors, those that transforms of torch.func have wrapped in them, and their tangents.
    """

def has_reducer(tensor: torch.Tensor) -> bool:
    """
    Whether the reducer of a DistributedDataParallel waits for the tensor's gradient.
    """

def host_identity() -> str:
    """
    Identifies this host (machine, boot, network namespace, name): equal for ranks on one host.
    """

def memory_live_bytes() -> int: ...
def memory_meter_install() -> None: ...
def memory_peak_bytes() -> int: ...
def memory_reset_peak() -> None: ...
def name_ranks(group: str, device: torch.device, names: collections.abc.Sequence[str]) -> None:
    """
    Sets what errors call each rank of a group, such as 'rank 6 (stage 1)'; see csrc/faults/rank_names.hpp.
    """

def norm_over_ranks(
    tensors: collections.abc.Sequence[torch.Tensor],
    norm_type: typing.SupportsFloat | typing.SupportsIndex,
    error_if_nonfinite: bool,
    parts: collections.abc.Sequence[tuple[Runtime, Runtime]],
) -> torch.Tensor | None:
    """
    The norm of the full tensors of which the given ones may be this rank's parts. Collective. See csrc/runtime/total_norm.hpp.
    """

def owners_of(tensors: collections.abc.Sequence[torch.Tensor]) -> list[tuple[Runtime, int] | None]:
    """
    For each tensor: the runtime and the index of the parameter that it is, or whose gradient it is; None: of no sharded model. See csrc/runtime/owners.hpp.
    """

def process_ended(process: str) -> bool:
    """
    Whether a process, given as this_process() described it, was on this host and has ended.
    """

def register_source(source: typing.Any) -> int:
    """
    Registers an object that provides the slices of a weight; returns its id. acquire(index, next) returns slice `index` (and may prefetch `next`), release(index) ends its use, put_grad(index, grad) takes its gradient.
    """

def set_error_types(types: list) -> None:
    """
    The classes of osdp.errors, in the order of ErrorKind in csrc/faults/errors.hpp
    """

def set_python_functions(
    typed_error: typing.Any, is_differentiated: typing.Any, unwrapped: typing.Any
) -> None:
    """
    What hooks of calls ask Python: typed_error(error, runtime, module), the error to raise instead of a RuntimeError of a module's call, or None; is_differentiated(tensor), whether torch.func takes its gradient; unwrapped(tensor), what a transform of torch.func has wrapped, or None.
    """

def set_ranks_of_part(
    group: str, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
) -> None:
    """
    Sets the global ranks of a line's or column's ranks, which errors name; see csrc/comm/parts.hpp.
    """

def shutdown(last_words: str = "") -> None:
    """
    Ends all lanes and heartbeats. `last_words`: the exception that ends this process, which is reported to the other ranks; '': none.
    """

def start_heartbeat(
    group: str, device: torch.device, timeout_s: typing.SupportsFloat | typing.SupportsIndex
) -> None:
    """
    Starts the thread that detects ranks that died, hang or diverged; once per group and device. `timeout_s`: the group's, in seconds. See csrc/faults/heartbeat.hpp.
    """

def this_process() -> str:
    """
    This process's identity as text (host, process id, start time); see csrc/faults/process.hpp.
    """

def timeout_of(group: str, device: torch.device) -> datetime.timedelta:
    """
    The timeout of a group's backend for a device.
    """

def unregister_source(id: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Forgets a source. Unknown ids are ignored.
    """

def versions_in(tree: typing.Any) -> bytes:
    """
    Bytes that differ once a tensor in `tree` (containers and the attributes of objects) was written to, added or removed.
    """

def watch_tree(look: typing.Any) -> None:
    """
    Sets the function that compares a model's tree with its runtime: look(runtime, when). It is called before an outermost call ('registered': something was registered since the last look; '': from time to time) and after one in which something was registered ('forward').
    """

HEARTBEAT_MARGIN_S: float = 0.5
