"""EqualBlocks: of many blocks in a row that are alike, a trace needs the backward and the memory of a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from osdp.base.tensor_trees import map_tensors, tensors_held, tensors_in
from osdp.description import block_runs
from osdp.description.block_calls import BlockCalls, FakeResults, NotAlikeError, maker_of, mark_of
from osdp.description.live_log import Entry, Event

# Note [Equal blocks]
# The layers of a transformer do the same with other parameters. The first of a row are traced; once two in succession did
# the same, those that follow are only *followed*: their Python code runs, every module and hook of it, and each ATen call
# must be the one that the block before made at that place: the same function on tensors from the same places (parameters by
# their name in the block, results by call), in the same module, with the same other arguments and grad mode. Then its
# result needs no computation and no memory, and at the block's end autograd's graph and what it saved are compared too. So
# whatever a block looks at (its index, a counter, a global, a random number) shows in what it calls, and nothing is assumed.
#   A followed block returns its inputs in place of its outputs, which have the same metadata, so that it is not in the graph
# of the backward. What it would have done is a copy of what the block before it did, with its names: the Watcher's
# events, and the log of memory and kernels, forward and backward. The last two of the row are traced again. The log may be
# copied if it is periodic: forward and backward of the traced neighbours, before and after the followed ones, are the same.
#   Whatever does not go as expected ends the trace with NotAlikeError, and the forward is traced again as a whole: a call
# that differs, a call between blocks, a tensor of a followed block, or one that it returned, that is used elsewhere, kept or
# returned by the model (hidden states of all layers), a row that ends early, nodes of autograd in Python, tensors' hooks.


class Log(Protocol):
    """What is used of LiveBytes."""

    @property
    def log(self) -> Sequence[Entry]: ...

    def number_of(self, tensor: torch.Tensor) -> int | None: ...


class Run:
    """A row of blocks, and how far the forward has come."""

    def __init__(self, names: list[str], model: nn.Module) -> None:
        self.names = names
        self.own = {
            name: {id(t): path for path, t in block_runs.own_tensors(model.get_submodule(name))}
            for name in names
        }
        self.next = 0  # the position of the block that is expected
        self.dead = False  # nothing is followed
        self.traced: list[BlockCalls] = []
        self.example: BlockCalls | None = None  # the one whose followers are not traced
        self.followed: list[BlockCalls] = []
        self.passed: dict[Any, int] = {}  # what a block returns -> the position among the next one's inputs
        self.numbers: set[int] = set()  # in the log, of the storages of what followed blocks return
        self.log_at = 0


class EqualBlocks:
    """Watches which block of `model` runs, beside the Watcher and `log`, which is LiveBytes."""

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[str],
        mode: FakeTensorMode,
        log: Log,
        pack: Any,
    ) -> None:
        self.runs = [Run(names, model) for names in block_runs.runs_of(model, blocks)]
        self.following = False
        self._run_of = {name: run for run in self.runs for name in run.names}
        self._results = FakeResults(mode)
        self._log = log
        self._pack = pack  # autograd's hook for saved tensors, unless the model has its own
        self._current: BlockCalls | None = None  # whose events are recorded
        self._inside = False
        self._tensors: list[torch.Tensor] = []  # that the followed block was called with
        self._active: Run | None = None  # has followed blocks, and is not at its end
        self._owner = {i: name for run in self.runs for name in run.names for i in run.own[name]}
        self._guarded: set[int] = set()  # tokens of blocks whose tensors may not be used elsewhere
        self._limits: list[int] = []  # sequence numbers of autograd's nodes, descending
        self._cuts: list[int] = []  # the log's length when the backward came below each of them
        self._failed: NotAlikeError | None = None

    @property
    def trusted(self) -> bool:
        """Whether any block was followed."""
        return bool(self._guarded)

    # Called by the Watcher.

    def enter(self, name: str, given: Any) -> None:
        """The block `name` is called with `given`."""
        run = self._run_of.get(name)
        self._close()
        if self._inside or (self._active is not None and run is not self._active):
            self._fail(f"{name} is called out of turn")
        if run is None or run.dead:
            return
        if run.names[run.next : run.next + 1] != [name]:
            self._not_as_usual(run, f"{name} is called out of turn")
            return
        run.next += 1
        if run.example is None and run.next > 2 and run.next <= len(run.names) - 2:
            self._compare(run)
        tensors = [*tensors_in(given)]
        self._current = BlockCalls(name, run.own[name], tensors, lambda t: self._before(run, t))
        self._current.begin = len(self._log.log)
        self._inside = True
        if run.example is None or run.next > len(run.names) - 2:
            if (
                run.example is not None
                and run.next == len(run.names) - 1
                and len(self._log.log) != run.log_at
            ):
                self._fail(f"memory was freed while blocks before {name} ran")
            run.traced.append(self._current)
            return
        if self._current.arguments != run.example.arguments:
            self._fail(f"{name} is called with other arguments")
        if not run.followed:
            self._begin_following(run, tensors)
        run.followed.append(self._current)
        self._tensors = tensors
        self._guarded.add(self._current.token)
        self.following = True

    def leave(self, output: Any, changed: bool) -> Any:
        """The block returned `output`, and has `changed` its inputs or not; what its caller is to get."""
        if not self._inside:
            return output
        current, self._inside = self._current, False
        assert current is not None
        run = self._run_of[current.name]
        if run.next == len(run.names):
            self._active = None
        current.comparable &= not changed
        current.finish(output)
        if not self.following:
            return output
        self.following = False
        tensors, self._tensors = self._tensors, []
        assert run.example is not None
        if not current.followed_to_end(run.example):
            self._fail(f"{current.name} ended differently")
        positions = {
            id(t): run.passed[where]
            for t, (where, *_) in zip(tensors_in(output), current.returned, strict=True)
            if where in run.passed
        }
        return map_tensors(lambda t: tensors[positions[id(t)]] if id(t) in positions else t, output)

    def call(self, call: Callable[[], Any], func: Any, args: Any, kwargs: Any, running: str) -> Any:
        """The result of an ATen call of a followed block; `call` computes it."""
        run, current = self._active, self._current
        assert run is not None and run.example is not None and current is not None
        try:
            self._check_hooks()
            return current.follow(run.example, self._results, call, func, args, kwargs, running)
        except NotAlikeError as error:
            self._failed = error
            raise

    def called(
        self, func: Any, args: Any, kwargs: Any, tensors: Iterable[torch.Tensor], out: Any, running: str
    ) -> None:
        """Any other ATen call of the forward."""
        current = self._current.name if self._current is not None and self._inside else None
        for tensor in tensors:
            owner = self._owner.get(id(tensor))
            if owner is not None and owner != current:
                self._not_as_usual(self._run_of[owner], f"{func} reads a parameter of {owner} outside of it")
        if self._guarded:
            if self._active is not None and not self._inside:
                self._fail(f"{func} is called between blocks")
            given = self._current.given if self._current is not None and self._inside else {}
            if any(maker_of(t) in self._guarded and id(t) not in given for t in tensors):
                self._fail(f"{func} is called with a tensor of a block that was not traced")
        if self._current is not None:
            if self._inside:
                self._check_hooks()
                self._current.record(func, args, kwargs, out, running)
            else:
                self._current.comparable = False

    def saves(self, tensor: torch.Tensor) -> None:
        if self._inside and self._current is not None:
            self._current.save(tensor)

    def happened(self, event: tuple[Any, ...]) -> None:
        """The Watcher's event, which a block that is alike has too."""
        if self._current is not None:
            relative = self._current.relative
            self._current.events.append(tuple(_map_names(relative, v) for v in event))

    def given(self, tensor: torch.Tensor, bytes_: int) -> None:
        """The running block is called with the tensor, whose storage has `bytes_`."""
        if self._inside and self._current is not None:
            self._current.inputs.append((self._current.where(tensor), bytes_))

    def given_too(self, inputs: Any) -> Iterable[torch.Tensor | int]:
        """Of storages that the running block, which is followed, is called with: a tensor if other blocks are called with
        it too, else its bytes."""
        run, current = self._active, self._current
        assert run is not None and run.example is not None and current is not None
        tensors = {current.where(t): t for t in tensors_in(inputs)}
        for where, bytes_ in run.example.inputs:
            if where not in tensors:
                self._fail(f"{current.name} is called with something else")
            origin = current.arguments[where[1]][0] if where[0] == "given" else where
            yield bytes_ if origin[0] in ("before", "made") else tensors[where]

    def doubt(self) -> None:
        """Something that is not seen in ATen calls."""
        if self._inside and self._current is not None:
            self._current.comparable = False

    def returns(self, output: Any) -> None:
        """The model returns `output`."""
        if self._failed is not None:
            raise self._failed
        self._close()
        if any(maker_of(t) in self._guarded for t in tensors_held(output)):
            self._fail("the model returns a tensor of a block that was not traced")
        for run in self.runs:
            if run.example is None:
                continue
            if run.next < len(run.names) or not run.traced[-2].alike(run.example):
                self._fail(f"{run.names[-2]} is not like {run.example.name}")
            before, example, beside, last = (b.sequence for b in run.traced[-4:])
            self._limits += [before, example, beside, last]
        self._limits.sort(reverse=True)

    def copied(self) -> Iterable[tuple[Any, ...]]:
        """The Watcher's events that the block that was followed last would have had."""
        run, current = self._active, self._current
        assert run is not None and run.example is not None and current is not None
        for event in run.example.events:
            yield tuple(_map_names(current.absolute, v) for v in event)

    # Called by LiveBytes.

    def goes_back_to(self, sequence: int, length: int) -> None:
        """The backward runs the node `sequence`, and the log has `length` entries."""
        at = len(self._cuts)
        if at and self._limits[at - 1] <= sequence < 2**63:
            self._failed = self._failed or NotAlikeError("the backward does not go from block to block")
        while at < len(self._limits) and sequence < self._limits[at]:
            self._cuts.append(length)
            at += 1

    def spliced(self, events: list[Event], backward: bool, live: set[int]) -> list[Event]:
        """The events of the forward, or the backward, with those of the followed blocks."""
        if self._failed is not None:
            raise self._failed
        runs = [run for run in self.runs if run.example is not None]
        if backward:
            self._cuts += [len(events)] * (len(self._limits) - len(self._cuts))
            cuts = dict(zip(self._limits, self._cuts, strict=True))
        places = []
        for run in runs:
            before, example, beside, last = run.traced[-4:]
            if not backward:
                parts = [(b, events[b.begin : b.end]) for b in (before, example, beside)]
                order: Iterable[BlockCalls] = run.followed
                places.append((example.end, order, parts))
                continue
            if run.numbers & live:
                self._fail("a tensor that a followed block returned is kept")
            starts = [cuts[b.sequence] for b in (last, beside, example)]
            ends = [cuts[b.sequence] for b in (beside, example, before)]
            parts = [
                (b, events[s:e]) for b, s, e in zip((beside, example, before), starts, ends, strict=True)
            ]
            places.append((starts[1], reversed(run.followed), parts))
        for at, order, parts in sorted(places, key=lambda p: p[0], reverse=True):
            relative = [[_relative(e, block) for e in own] for block, own in parts]
            if relative[0] != relative[1] or relative[1] != relative[2]:
                self._fail(f"memory of {parts[0][0].name} is not that of {parts[1][0].name}")
            events[at:at] = [_absolute(e, block) for block in order for e in relative[1]]
        return events

    def _compare(self, run: Run) -> None:
        """Whether the last two traced blocks of the run were alike, so that the next ones are followed."""
        before, example = run.traced[-2:]
        passed = {where: i for i, (where, *_) in enumerate(example.arguments) if where[0] == "before"}
        made = [where for where, *_ in example.returned if where[0] != "given"]
        passed_on = {("made", *where[1:]): i for where, i in passed.items()}
        unique = len(passed) == sum(where[0] == "before" for where, *_ in example.arguments)
        if before.alike(example) and unique and all(where in passed_on for where in made):
            run.example, run.passed, self._active = example, passed_on, run

    def _begin_following(self, run: Run, tensors: list[torch.Tensor]) -> None:
        assert run.example is not None
        run.log_at = len(self._log.log)
        self._guarded.add(run.example.token)
        numbers = (self._log.number_of(tensors[i]) for i in run.passed.values())
        run.numbers = {n for n in numbers if n is not None}

    def _before(self, run: Run, tensor: torch.Tensor) -> Any:
        """What an input of a block is: something that the block before returned, or that all are given."""
        mark = mark_of(tensor)
        last = run.traced[-1].token if run.traced else 0
        return ("before", *mark[1:]) if mark[0] == last else mark

    def _check_hooks(self) -> None:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        if hooks is None or hooks[0] is not self._pack:
            self.doubt()

    def _close(self) -> None:
        if self._current is not None:
            self._current.end = len(self._log.log)
        self._current = None

    def _not_as_usual(self, run: Run, why: str) -> None:
        """No block of the run is followed; if some were already, the trace ends."""
        run.dead = True
        if run.example is not None:
            self._fail(why)

    def _fail(self, why: str) -> NoReturn:
        self._failed = self._failed or NotAlikeError(why)
        raise self._failed


def _map_names(change: Callable[[str], str], value: Any) -> Any:
    return (
        change(value)
        if isinstance(value, str)
        else tuple(map(change, value))
        if isinstance(value, tuple)
        else value
    )


def _relative(event: Event, block: BlockCalls) -> Event:
    what = block.relative(event.what) if isinstance(event.what, str) else event.what
    return event._replace(running=block.relative(event.running), what=what)


def _absolute(event: Event, block: BlockCalls) -> Event:
    what = block.absolute(event.what) if isinstance(event.what, str) else event.what
    return event._replace(running=block.absolute(event.running), what=what)
