"""Refuses optimizers on shards whose step of a matrix is not the same as separate steps of its rows.

Note [Is an optimizer element-wise]
AdamW's step of a matrix equals separate steps of its halves, so it can be given rows. This is not so for Muon
(which orthogonalises the matrix), Adafactor, LBFGS, LARS or SAM (which use norms): on shards each rank would
silently compute something different. Optimizers cannot be recognized by class, since anyone may write one, so
their behaviour is tested. Before the first step of an optimizer that holds shards, one of its class with its
options steps small tensors with the same number of dimensions, and two more step their halves; if the results
differ, the optimizer is refused, with nothing changed. torch's own element-wise ones are known and not
tested. After that a step costs one dictionary lookup.
  An optimizer that takes means of rows (gradient centralisation, one learning rate for a row) may be given rows, but not
pieces of rows, which a rank holds of a weight in slices of its columns, and of a [1, n, m] embedding of positions. So
halves are taken along each dimension along which parameters are cut.
  They step with a closure if the script's step has one: that makes the gradients anew, and so undoes what such a step did
to them before.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from osdp.base.warned import warn
from osdp.errors import ShardingError
from osdp.sharding.dtensor_parameters import shown_like
from osdp.sharding.replaced_parameters import check_replaced
from osdp.sharding.sharded_model import registrations
from osdp.sharding.sharded_parameters import ShardedParameter, sharded_parameters
from osdp.sharding.torch_patches.optimizer_options import OptionCheck
from osdp.sharding.torch_patches.states_of_optimizers import check_first_step

# Of each step: whether gradients jump, as some optimizers scale the steps that follow (StableAdamW), and whether they are
# nearly orthogonal to the whole parameter, which some look for (SGDP).
STEPS = ((False, False), (False, False), (True, False), (True, True))
# Of the step, and of the parameter; element-wise ones differ by rounding at most, and some compute in float32 always.
TOLERANCES = {torch.float64: (1e-6, 1e-7), torch.float32: (1e-5, 1e-6)}
_NAMES = (
    *("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD"),
    *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam"),
)
_ELEMENT_WISE = frozenset(getattr(torch.optim, name) for name in _NAMES if hasattr(torch.optim, name))
# Optimizer -> numbers of its parameters and of registrations at the last check, and the check of its
# options; None if it holds no shards.
_checked: WeakKeyDictionary[Optimizer, tuple[tuple[int, int], OptionCheck | None]] = WeakKeyDictionary()


def check_before_step(optimizer: Optimizer, *, closure: bool) -> None:
    """`closure`: whether the step has one. Raises ShardingError if the optimizer holds shards and is not element-wise,
    DisagreementError if its options differ between ranks."""
    seen = sum(len(group["params"]) for group in optimizer.param_groups), registrations()
    known = _checked.get(optimizer)
    if known is None or known[0] != seen:
        parameters = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        check_replaced(optimizer)
        cut = sharded_parameters(parameters.values())
        # DTensors know that they are parts.
        rows = {key: part for key, part in cut.items() if shown_like(parameters[key]) is None}
        _refuse_full_states(optimizer, rows)
        if type(optimizer) not in _ELEMENT_WISE:
            check_optimizer(optimizer, rows, closure)
        check_first_step(optimizer)
        places = list(dict.fromkeys((c.sharded.group, c.sharded.device) for c in cut.values()))
        check = known and known[1]
        # The check is kept if possible: a part (an expert) has its first forward, and is sharded again, at
        # different steps on different ranks, but the checks' messages must match. For the same reason the order
        # of places does not count. A check has no reference to a model: sharding again at the first forward
        # replaces the model's runtime, and the former one must be freed.
        if check is None or set(check.places) != set(places):
            check = OptionCheck(places) if places else None
        known = _checked[optimizer] = seen, check
    if known[1] is not None:
        known[1].before_step(optimizer)


def _refuse_full_states(optimizer: Optimizer, cut: dict[int, ShardedParameter]) -> None:
    """Raises ShardingError if the optimizer has stepped before its parameters were sharded."""
    for parameter, state in optimizer.state.items():
        found = cut.get(id(parameter))
        if found is None or not isinstance(state, dict) or found.full_shape == found.local_shape:
            continue
        for key, value in state.items():
            if isinstance(value, Tensor) and value.dim() > 0 and tuple(value.shape) == found.full_shape:
                raise ShardingError(
                    f"{found.rank_name}: the {key} of '{found.name}' in {type(optimizer).__name__} has the full shape "
                    f"{found.full_shape}, but this rank holds {found.local_shape} of it: the optimizer has stepped "
                    "before fully_shard. Create it after fully_shard; optimizer.load_state_dict takes the full state "
                    "of the former one"
                )


def check_optimizer(optimizer: Optimizer, cut: dict[int, ShardedParameter], closure: bool) -> None:
    """Raises ShardingError if the optimizer holds shards (those in `cut`) and is not element-wise."""
    if not cut:
        return
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    first = next(iter(cut.values()))
    if any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(optimizer).__mro__):
        raise ShardingError(
            f"{first.rank_name}: {kind} distributes parameters over ranks and broadcasts them, but "
            f"'{first.name}' holds only this rank's rows, which would overwrite those of the other "
            "ranks. OSDP already shards the optimizer's state: use the inner optimizer."
        )
    try:
        with torch.random.fork_rng(devices=[]):
            try:
                differences = step_differences(optimizer, cut, closure)
            except Exception:  # a kernel that has no double precision, say
                differences = step_differences(optimizer, cut, closure, torch.float32)
    except Exception as error:
        warn(
            f"{first.rank_name}: OSDP cannot tell whether {kind} is element-wise "
            f"({type(error).__name__}: {error}). It updates this rank's rows of '{first.name}' and of "
            f"{len(cut) - 1} more parameters: if it needs whole matrices or a norm, give their "
            f"operators NO_SHARD ({first.advice}).",
        )
        return
    if differences:
        parts = [part for part in cut.values() if not differences.keys().isdisjoint(_cuts(part))]
        raise ShardingError(
            f"{first.rank_name}: {kind} needs whole tensors: its step on a tensor differs from its "
            f"steps on parts of the tensor (by {max(differences.values()):.2g} of the step), and each rank holds only "
            f"a part of '{parts[0].name}' and of {len(parts) - 1} more of its parameters. Nothing was "
            f"changed. Give their operators NO_SHARD ({parts[0].advice}), or use an element-wise "
            "optimizer for them."
        )


# How a parameter is cut: its number of dimensions, and the one along which a rank holds a part.
Cut = tuple[int, int]


def _cuts(part: ShardedParameter) -> set[Cut]:
    """Those of a weight in slices of its columns are two."""
    full = part.full_shape
    shorter = {d for d, (here, whole) in enumerate(zip(part.local_shape, full, strict=True)) if here != whole}
    return {(len(full), d) for d in shorter | {part.dim}}


def step_differences(
    optimizer: Optimizer,
    cut: dict[int, ShardedParameter],
    closure: bool,
    dtype: torch.dtype = torch.float64,
) -> dict[Cut, float]:
    """Relative differences between steps of halves and the step of the whole, where they do not agree."""
    halves = (slice(None), slice(0, 3), slice(3, 6))
    whole, upper, lower = (_Trial(optimizer, cut, half, dtype) for half in halves)
    of_step, of_start = TOLERANCES[dtype]
    found: dict[Cut, float] = {}
    for jumps, orthogonal in STEPS:
        along = whole.along(jumps) if orthogonal else [0.0] * len(whole.params)
        for trial in (whole, upper, lower):
            trial.step(jumps, along, closure)
        trials = zip(whole.cuts, whole.params, upper.params, lower.params, whole.start, strict=True)
        for kind, w, u, low, start in trials:
            step = (w.detach() - start).norm()
            apart = (torch.cat([u.detach(), low.detach()], kind[1]) - w.detach()).norm()
            if not apart <= of_step * step + of_start * start.norm():
                found[kind] = max(found.get(kind, 0.0), float(apart / step))
    return found


class _Trial:
    """An optimizer like the given one over small tensors: `half` of six rows, or of what else they are cut along."""

    def __init__(
        self, optimizer: Optimizer, cut: dict[int, ShardedParameter], half: slice, dtype: torch.dtype
    ) -> None:
        device = next(p.device for g in optimizer.param_groups for p in g["params"] if id(p) in cut)
        generator = torch.Generator().manual_seed(0)
        self.cuts: list[Cut] = []
        self.params: list[nn.Parameter] = []
        self.start: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.curvatures: list[Tensor] = []
        self.jumps: list[Tensor] = []
        replaced: list[list[nn.Parameter]] = []
        for group in optimizer.param_groups:
            kinds = [kind for p in group["params"] if id(p) in cut for kind in _cuts(cut[id(p)])]
            replaced.append([])
            for dims, cut_along in sorted(set(kinds)):
                size = (6, 4, 2, 2, *(1,) * dims)[:dims]
                # The halves have different magnitudes, so that their norms differ.
                scale = torch.tensor([1.0, 1.0, 1.0, 5.0, 5.0, 5.0]).view(6, *(1,) * (dims - 1))
                start, target = (torch.randn(size, generator=generator) * scale for _ in range(2))
                curvature, jump = (30 ** (2 * torch.rand(size, generator=generator) - 1) for _ in range(2))
                self.cuts.append((dims, cut_along))
                for values, whole in (
                    (self.start, start),
                    (self.targets, target),
                    (self.curvatures, curvature),
                    (self.jumps, jump),
                ):
                    values.append(whole.to(device, dtype)[half].movedim(0, cut_along).contiguous())
                self.params.append(nn.Parameter(self.start[-1].clone()))
                replaced[-1].append(self.params[-1])
        self.optimizer = _like(optimizer, replaced)
        step = type(self.optimizer).step
        # Hooks of the script are for its own optimizers.
        self._step: Callable[..., Any] = getattr(step, "__wrapped__", step)

    def _gradients(self, jumps: bool) -> list[Tensor]:
        """Each element depends on that element alone."""
        rows = zip(self.params, self.targets, self.curvatures, self.jumps, strict=True)
        return [(p.detach() - to) * c * (jump if jumps else 1) for p, to, c, jump in rows]

    def along(self, jumps: bool) -> list[float]:
        """How much of each gradient is along its parameter, but for a hundredth."""
        pairs = zip((p.detach() for p in self.params), self._gradients(jumps), strict=True)
        return [float((g * p).sum() / p.square().sum() - 0.01 * g.norm() / p.norm()) for p, g in pairs]

    def step(self, jumps: bool, along: list[float], closure: bool) -> None:
        def loss() -> Tensor:
            total = torch.zeros(())
            for p, g, much in zip(self.params, self._gradients(jumps), along, strict=True):
                p.grad = g - much * p.detach()
                total += (0.5 * p.grad * p.detach()).sum().cpu()
            return total

        loss()
        if closure:
            self._step(self.optimizer, loss)
        else:
            self._step(self.optimizer)


def _like(optimizer: Optimizer, replaced: list[list[nn.Parameter]]) -> Optimizer:
    """A new optimizer of the same class with the same options, for other parameters."""
    groups = []
    for group, params in zip(optimizer.param_groups, replaced, strict=True):
        if params:
            options = {k: copy.deepcopy(v) for k, v in group.items() if k not in ("params", "param_names")}
            if "lr" in options:  # warm-up schedules begin with 0
                lr = options["lr"]
                options["lr"] = torch.full_like(lr, 0.1) if isinstance(lr, Tensor) else 0.1
            groups.append({**options, "params": params})
    names = inspect.signature(type(optimizer).__init__).parameters
    try:
        options = {k: v for k, v in optimizer.defaults.items() if k in names}
        return type(optimizer)(groups, **options)
    except Exception:
        return _copied(optimizer, replaced, groups)


def _copied(
    optimizer: Optimizer, replaced: list[list[nn.Parameter]], groups: list[dict[str, Any]]
) -> Optimizer:
    """For constructors that need more than the options: a copy, in which inner optimizers are replaced in the
    same way."""
    made = object.__new__(type(optimizer))
    for key, value in vars(optimizer).items():
        if key == "param_groups":
            value = groups
        elif key == "state":
            value = defaultdict(dict)
        elif isinstance(value, Optimizer):
            value = _copied(value, replaced, groups)
        elif not callable(value):
            value = copy.copy(value)
        setattr(made, key, value)
    return made
