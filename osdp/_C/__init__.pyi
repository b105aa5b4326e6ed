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
    "SplitSpec",
    "UnitSpec",
    "Work",
    "await_backwards",
    "connect_part",
    "count_registration",
    "elementwise",
    "end_group",
    "host_identity",
    "leave_out",
    "memory_live_bytes",
    "memory_meter_install",
    "memory_meter_installed",
    "memory_peak_bytes",
    "memory_reset_peak",
    "norm_over_ranks",
    "ordering_sites",
    "owners_of",
    "process_ended",
    "register_source",
    "set_error_types",
    "set_place",
    "set_ranks_of_part",
    "shutdown",
    "start_heartbeat",
    "this_process",
    "timeout_of",
    "unregister_source",
    "watch_tree",
]

class SplitCall:
    """
    A split matrix product over given parameters, called like nn.Linear.forward.
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
    ) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def granularity(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def split(self) -> int: ...

class Work:
    """
    The end of a task on the lane.
    """
    def wait(self) -> None: ...
    @property
    def done(self) -> bool: ...
    @property
    def seconds(self) -> float:
        """
        How long the task ran; 0 on accelerators, and before it is done.
        """

class Collectives:
    """
    What the runtime communicates with: see csrc/comm/collectives.hpp. Each call runs on the group's lane and returns when it is done there.
    """
    def __init__(self, group: str, device: torch.device) -> None: ...
    def all_bytes(self, label: str, mine: str) -> list:
        """
        Every rank's bytes, in the order of ranks. `label` says what for, alike on all ranks.
        """
    def all_gather(
        self,
        outputs: collections.abc.Sequence[torch.Tensor],
        inputs: collections.abc.Sequence[torch.Tensor],
        label: str = "all-gather",
    ) -> None: ...
    def all_reduce_mean(self, tensors: collections.abc.Sequence[torch.Tensor]) -> None: ...
    def broadcast(self, tensors: collections.abc.Sequence[torch.Tensor]) -> None: ...
    def reduce_scatter_mean(
        self, outputs: collections.abc.Sequence[torch.Tensor], inputs: collections.abc.Sequence[torch.Tensor]
    ) -> None: ...
    def submit_all_reduce_mean(self, tensors: collections.abc.Sequence[torch.Tensor]) -> Work:
        """
        The same without waiting for it.
        """
    @property
    def has_memory(self) -> bool:
        """
        Whether the backend allocates tensors for its collectives on this device
        """
    @property
    def transport(self) -> str:
        """
        What carries the bytes: 'shared memory', 'sockets' or the backend's name.
        """

class CallHook:
    """
    Forward hooks of one module
    """
    def __deepcopy__(self, arg0: typing.Any) -> None: ...
    def __reduce_ex__(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> tuple: ...
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
        Where the module that owns it has a parameter: parameters[leaf]
        """

class Mode:
    """
    Members:

      NO_SHARD

      SHARD_GRAD_OP

      FULL_SHARD

      HYBRID_SHARD
    """

    FULL_SHARD: typing.ClassVar[Mode]
    HYBRID_SHARD: typing.ClassVar[Mode]
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
    granularity slices along 'out' (0) or 'in' (1), the last `sharded` sharded
    """
    def __init__(
        self,
        granularity: typing.SupportsInt | typing.SupportsIndex,
        sharded: typing.SupportsInt | typing.SupportsIndex,
        dim: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class ParamSpec:
    """
    A parameter's name, its tensor (full, equal on all ranks), its split, and the dtypes it is computed and its gradient reduced in (None: its own). With full_sizes its value comes later: the runtime makes memory for this rank's part, in the host's memory with offload.
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
    ) -> None: ...

class UnitSpec:
    """
    Indices of parameters gathered and reduced together
    """
    def __init__(
        self,
        name: str,
        mode: Mode,
        params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> None: ...

class Piece:
    """
    A block of the full tensor and where it lies in the local one
    """
    def view(self, local: torch.Tensor) -> torch.Tensor:
        """
        This piece of a local-shaped tensor, as a view.
        """
    @property
    def global_offsets(self) -> tuple: ...
    @property
    def replicated(self) -> bool: ...
    @property
    def sizes(self) -> tuple: ...

class Runtime:
    """
    A training step of one sharded model; see csrc/runtime/runtime.hpp
    """

    part: bool
    sync: bool
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
    ) -> None: ...
    def add_call(
        self,
        module: str,
        params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        root: bool,
        hold: bool,
        method: bool = False,
    ) -> CallHook: ...
    def arena_bytes(self) -> int:
        """
        Bytes reserved to gather into
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
        Bytes of NO_SHARD parameters' copies in the dtype they are computed in that exist now
        """
    def full_shape(self, param: typing.SupportsInt | typing.SupportsIndex) -> list[int]: ...
    def gather_whole(
        self, param: typing.SupportsInt | typing.SupportsIndex, local: torch.Tensor
    ) -> torch.Tensor: ...
    def gathered_bytes(self) -> int:
        """
        Bytes of full tensors that exist now
        """
    def is_whole(self, param: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether every rank holds all of it.
        """
    def join(self, label: str, params: collections.abc.Sequence[ParamSpec]) -> None: ...
    def name(self, param: typing.SupportsInt | typing.SupportsIndex) -> str: ...
    def owner_of(self, tensor: torch.Tensor) -> tuple[str, bool] | None:
        """
        Name of the parameter in whose memory it lies, and whether it is whole
        """
    def pieces(self, param: typing.SupportsInt | typing.SupportsIndex) -> list[Piece]: ...
    def reset_statistics(self) -> None: ...
    def saw_tree(self) -> None:
        """
        The model's tree was compared after all registrations until now
        """
    def set_absent(
        self, params: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
    ) -> None: ...
    def set_budget(self, sentence: str) -> None:
        """
        What the plan predicted, for the text of OutOfMemoryError
        """
    def source_of(self, param: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def statistics(self) -> dict: ...
    def summon(self, with_grads: bool) -> None: ...
    def suspect_replicas(self) -> None: ...
    def take_local(
        self, param: typing.SupportsInt | typing.SupportsIndex, full: torch.Tensor
    ) -> torch.Tensor: ...
    def uninstall(self) -> None:
        """
        fully_shard failed and the model is put back: its gradients are no longer this runtime's
        """
    def unreduced(self) -> int | None:
        """
        The first parameter whose gradient no_sync has kept and nothing has reduced or dropped since
        """
    def unsummon(self, writeback: bool) -> None: ...
    @property
    def in_pass(self) -> bool:
        """
        Within a call or a backward
        """
    @property
    def prefetch(self) -> int: ...
    @prefetch.setter
    def prefetch(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def step_seconds(self) -> list[float]:
        """
        Seconds between the beginnings of the last training forwards
        """
    @property
    def summoned(self) -> bool: ...
    @property
    def tree_changed(self) -> bool: ...
    @property
    def world(self) -> int: ...

def await_backwards() -> None:
    """
    After an exception in a backward: until every model is put back. See Note [A backward that ends elsewhere].
    """

def connect_part(part: str, device: torch.device) -> None:
    """
    Makes the transport of a group of some of a lane's ranks, by those ranks alone. Collective.
    """

def count_registration(arg0: typing.Any, arg1: typing.Any, arg2: typing.Any) -> None:
    """
    A hook for torch.nn.modules.module.register_module_..._registration_hook
    """

def end_group(group: str) -> None:
    """
    Ends a group's heartbeat, lanes and transport; see csrc/comm/ending.hpp.
    """

def host_identity() -> str:
    """
    Machine, boot, network namespace and name of this host: the same for ranks that share it
    """

def leave_out(site: str) -> None:
    """
    For tests: from now on notes which calls order streams, and leaves out the one of this name ("": none).
    """

def memory_live_bytes() -> int: ...
def memory_meter_install() -> None: ...
def memory_meter_installed() -> bool: ...
def memory_peak_bytes() -> int: ...
def memory_reset_peak() -> None: ...
def norm_over_ranks(
    tensors: collections.abc.Sequence[torch.Tensor],
    norm_type: typing.SupportsFloat | typing.SupportsIndex,
    error_if_nonfinite: bool,
    parts: collections.abc.Sequence[tuple[Runtime, Runtime]],
) -> torch.Tensor | None:
    """
    The norm of tensors as in one process, where any is a part; see csrc/runtime/total_norm.hpp.
    """

def ordering_sites() -> list[str]:
    """
    The names of those made since `leave_out`.
    """

def owners_of(tensors: collections.abc.Sequence[torch.Tensor]) -> list[tuple[Runtime, int] | None]:
    """
    Of each tensor: the sharded model and the parameter that it is, or is the gradient of; see csrc/runtime/owners.hpp.
    """

def process_ended(process: str) -> bool:
    """
    Whether that process was on this host and has ended.
    """

def register_source(source: typing.Any) -> int:
    """
    Registers an object with acquire(index, next), release(index) and put_grad(index, grad); returns its id.
    """

def set_error_types(types: list) -> None:
    """
    The classes of osdp.errors, in the order of ErrorKind in csrc/faults/errors.hpp
    """

def set_place(group: str, device: torch.device, place: str) -> None:
    """
    Where this rank is, for the other ranks' errors: 'osdp.save'; '' where it is nowhere in particular.
    """

def set_ranks_of_part(
    group: str, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
) -> None:
    """
    Who the ranks of a line or column are among all, for errors; see csrc/comm/parts.hpp.
    """

def shutdown(last_words: str = "") -> None:
    """
    Ends the communication threads. `last_words`: the exception that ends this process, for the other ranks.
    """

def start_heartbeat(
    group: str, device: torch.device, timeout_s: typing.SupportsFloat | typing.SupportsIndex
) -> None:
    """
    Finds out which rank died, hangs or goes another way; see csrc/faults/heartbeat.hpp.
    """

def this_process() -> str:
    """
    What tells this process from all others, as a text; see csrc/faults/process.hpp.
    """

def timeout_of(group: str, device: torch.device) -> datetime.timedelta:
    """
    Of the backend that a group has for a device.
    """

def unregister_source(id: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Forgets a source. Unknown ids are ignored.
    """

def watch_tree(look: typing.Any) -> None:
    """
    look(runtime, when) is called before an outermost call (when: 'registered' or '', a look now and then) and after one in which something was registered ('forward').
    """

HEARTBEAT_MARGIN_S: float = 0.5
