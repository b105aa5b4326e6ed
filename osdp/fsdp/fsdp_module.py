"""FSDPModule: the methods that FSDP2 adds to a module. Methods that tune mechanisms OSDP does not have do
nothing.

Note [torch's FSDPModule]
torchtitan, torch's pipelining and other libraries look for instances of torch's FSDPModule, and for classes named
FSDP<Name>. Where they do not find them, they take gradients to be means that they still have to scale, or reduce after
every micro-batch: another number, without an error. So this class is a subclass of torch's, and every public method of
torch's is defined here (a test compares the two), since torch's own need the state of FSDP2. What torch's pipelining
reads of that state is in osdp/fsdp/pipelining.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule as TorchFSDPModule
from torch.distributed.fsdp import UnshardHandle as TorchUnshardHandle

from osdp.base.made_classes import reduced
from osdp.errors import ShardingError
from osdp.fsdp.pipelining import answer_pipelining
from osdp.sharding.forward_methods import outermost_around, part_of
from osdp.sharding.gradient_factors import set_divide_factor
from osdp.sharding.init_after_to_empty import initialise_in_full
from osdp.sharding.step_scopes import set_sync

# These tune how long memory is held and when collectives run; here the plan's prefetch and modes decide that.
HINTS = (
    "reset_iter_state",
    "reshard",
    "set_force_sum_reduction_for_comms",
    "set_is_last_backward",
    "set_modules_to_backward_prefetch",
    "set_modules_to_forward_prefetch",
    "set_post_optim_event",
    "set_reduce_scatter_max_input_buffers",
    "set_reshard_after_backward",
    "set_reshard_after_forward",
    "set_separate_reduce_scatter_group",
    "set_symm_mem_for_comm",
    "set_unshard_in_backward",
)

# These would change results or memory in ways that are not supported; and what to do instead.
UNSUPPORTED = {
    "set_all_reduce_hook": "change gradients after backward, or in register_post_accumulate_grad_hook",
    "set_allocate_memory_from_process_group_for_comm": "pass it to osdp.fully_shard(model, plan)",
    "set_custom_all_gather": "OSDP uses its own collectives",
    "set_custom_reduce_scatter": "OSDP uses its own collectives",
    "set_reduce_scatter_unused_params": "a parameter that no rank used gets no gradient",
}


class UnshardHandle(TorchUnshardHandle):
    """The result of `unshard`; its `wait` returns immediately."""

    def wait(self) -> None:
        pass


class FSDPModule(TorchFSDPModule, nn.Module):
    """Base class of modules that `osdp.fully_shard(module)` has sharded; docs/drop-in.md describes each
    method. A subclass of torch's FSDPModule: Note [torch's FSDPModule].

    >>> model.set_requires_gradient_sync(False)  # accumulate without communication
    """

    _osdp_fsdp_module = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A new instance of the class (a slice of a Sequential) is not sharded: it is of the original class."""
        kind = next(kind for kind in cls.__mro__ if not issubclass(kind, TorchFSDPModule))
        made = kind.__new__(kind, *args, **kwargs)
        made.__init__(*args, **kwargs)  # type: ignore[misc]
        return made

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """The original class's, as for any module; torch's needs the state of FSDP2."""
        return super(TorchFSDPModule, self)._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def to_empty(self, *, device: Any, recurse: bool = True) -> Any:
        """The original class's. Until the next forward, methods that initialise (`reset_parameters`, `init_weights`, `apply`
        with a function) may then be called, by all ranks: Note [Initialising after to_empty]."""
        super().to_empty(device=device, recurse=recurse)
        if recurse:
            initialise_in_full(self)
        return self

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Accepted as a hint, without effect: the next call gathers. To read full parameters outside of calls
        use `osdp.summon_full_params`."""
        return UnshardHandle() if async_op else None

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """With False, backward keeps this rank's own gradients, as in `osdp.no_sync`. Raises ShardingError
        except on the outermost module."""
        model, _, name = outermost_around(self)
        if name:
            raise ShardingError(
                f"set_requires_gradient_sync must be called on the outermost module: {name!r} is a "
                f"part of a {type(model).__name__}"
            )
        set_sync(model, requires_gradient_sync)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Gradients of the parameters that belong to this module's unit (not to a sharded part inside) are the sum over
        the ranks divided by `factor`, instead of their mean. Alike on all ranks; also within accumulation.

        Raises InvalidProblemError unless `factor` is a positive number.
        """
        parts = [part for part in self.modules() if part is not self and isinstance(part, FSDPModule)]
        inside = {id(p) for part in parts for p in part.parameters()}
        set_divide_factor([p for p in self.parameters() if id(p) not in inside], factor)

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """FSDP2's older name of `set_gradient_divide_factor`."""
        self.set_gradient_divide_factor(factor)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Accepted without effect where HYBRID_SHARD is not used; with it, False raises ShardingError."""
        _, sharded, _ = part_of(self)
        if not requires_all_reduce and sharded.grid is not None and len(sharded.grid.lines) > 1:
            raise ShardingError(
                "set_requires_all_reduce(False) is not supported: accumulate with "
                "set_requires_gradient_sync(False)"
            )


def _hint(name: str) -> Callable[..., None]:
    def accepted(self: FSDPModule, *_: Any, **__: Any) -> None:
        """Accepted, without effect: the plan decides what this would tune."""

    accepted.__name__ = name
    return accepted


def _refusal(name: str, instead: str) -> Callable[..., None]:
    def refused(self: FSDPModule, *_: Any, **__: Any) -> None:
        raise ShardingError(f"{name} is not supported: {instead}")

    refused.__name__ = name
    refused.__doc__ = f"Not supported, raises ShardingError: {instead}."
    return refused


for _name in HINTS:
    setattr(FSDPModule, _name, _hint(_name))
for _name, _instead in UNSUPPORTED.items():
    setattr(FSDPModule, _name, _refusal(_name, _instead))


def as_fsdp_module(module: nn.Module) -> None:
    """Give `module` the methods: its class becomes a subclass of FSDPModule and its own class, as in
    FSDP2."""
    kind = type(module)
    if not issubclass(kind, FSDPModule):
        module.__class__ = _both(kind)
        answer_pipelining(module)


def _both(kind: type[nn.Module]) -> type[nn.Module]:
    def __reduce_ex__(self: nn.Module, protocol: Any) -> Any:
        return reduced(self, protocol, kind, _made)

    names = {"__module__": kind.__module__, "__reduce_ex__": __reduce_ex__}
    return type(f"FSDP{kind.__name__}", (FSDPModule, kind), names)


def _made(kind: type[nn.Module]) -> nn.Module:
    return kind.__new__(_both(kind))
