"""Local operators: what one rank of a tensor-parallel group holds and computes of each.

Note [Local shapes]
A column-wise linear keeps out / t rows of its weight and its bias, reads whole inputs and makes a part of its outputs; a
row-wise one keeps in / t columns and the whole bias, and reads the part of the inputs that it has. Embeddings are shared
along the vocabulary (row-wise) or the width. What a module computes itself between such weights (attention, activation
functions) works on their parts: a module all of whose parameters are shared, or one that has an attention kernel around a
shared projection. Everything else every rank computes whole, or, under sequence parallelism, for its part of the sequence.
So do saved activations and work follow; of a kernel its flops and bytes are divided, and its least dimension is the
local one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from functools import cached_property

from osdp.base.names import is_in, modules_around
from osdp.description.model_description import (
    WORK_BYTES,
    Block,
    Kernel,
    ModelDescription,
    Operator,
    Parameter,
)
from osdp.errors import InvalidProblemError

WORK, WORK_FIXED = WORK_BYTES[::2], WORK_BYTES[1::2]


class LocalOperators:
    """The operators of a description as one of `ranks` ranks has them."""

    def __init__(self, description: ModelDescription, styles: Mapping[str, str], ranks: int) -> None:
        self.description, self.styles, self.ranks = description, styles, ranks
        self.sequence = "sequence" in styles.values()
        self._kernels = list(description.kernels)
        self._known: dict[object, int] = {}
        self._parts: dict[str, bool] = {}  # by module, the same in all blocks

    @cached_property
    def local(self) -> ModelDescription:
        """Raises InvalidProblemError for a dimension that the ranks do not divide, naming the operator."""
        if self.ranks == 1:
            return self.description
        operators = tuple(self._local(o) for o in self.description.operators)
        # Under sequence parallelism blocks pass on parts of the sequence.
        share = self.ranks if self.sequence else 1
        blocks = tuple(Block(b.name, -(-b.input_bytes_per_sample // share)) for b in self.description.blocks)
        return dataclasses.replace(
            self.description, operators=operators, blocks=blocks, kernels=tuple(self._kernels)
        )

    def _local(self, o: Operator) -> Operator:
        style = self.styles.get(o.name, "")
        if style == "colwise":
            self._check_groups(o)
        if o.parameters and style.startswith("colwise"):
            part = self._shared(o, 1 if o.kind == "Embedding" else 0)
            return self._scaled(part, inputs=1, outputs=self.ranks, style=style)
        if o.parameters and style.startswith("rowwise"):
            part = self._shared(o, 0 if o.kind == "Embedding" else 1)
            return self._scaled(part, inputs=self.ranks, outputs=1, style=style)
        on_parts = style == "on_parts" if o.parameters else self._on_parts(o)
        share = self.ranks if self.sequence or on_parts else 1
        return self._scaled(o, inputs=share, outputs=share, style="")

    def _check_groups(self, o: Operator) -> None:
        if o.output_groups % self.ranks:
            raise InvalidProblemError(
                f"tensor_parallel={self.ranks} does not divide the {o.output_groups} groups (heads) in which forward views "
                f"the outputs of {o.name}"
            )

    def _shared(self, o: Operator, dimension: int) -> Operator:
        """With parts of its parameters: `dimension` of matrices; of vectors (a bias) the first if outputs are shared."""
        parameters = tuple(self._part(o, p, dimension) for p in o.parameters)
        split = o.split_shape if o.multiplies else None  # torch's divided embeddings are not sliced
        if split is not None:
            split = (
                (split[0] // self.ranks, split[1]) if dimension == 0 else (split[0], split[1] // self.ranks)
            )
        return dataclasses.replace(
            o,
            parameters=parameters,
            split_shape=split,
            look_ups=(),
            kernel_places=0,
            parameter_bytes=sum(
                p.elements * o.parameter_bytes // max(1, sum(q.elements for q in o.parameters))
                for p in parameters
            ),
        )

    def _part(self, o: Operator, p: Parameter, dimension: int) -> Parameter:
        if len(p.shape) < 2 and (dimension == 1 or o.kind == "Embedding"):
            return p
        at = 1 - dimension if len(p.shape) == 2 and o.transposed else dimension
        if p.shape[at] % self.ranks:
            raise InvalidProblemError(
                f"tensor_parallel={self.ranks} does not divide dimension {at} of {p.name}, {p.shape[at]}"
            )
        shape = (*p.shape[:at], p.shape[at] // self.ranks, *p.shape[at + 1 :])
        return dataclasses.replace(p, shape=shape)

    def _on_parts(self, o: Operator) -> bool:
        """Whether a module's own computation, without parameters, works on parts."""
        alike = re.sub(r"\d+", "#", o.name)
        if alike not in self._parts:
            self._parts[alike] = self._computes_parts(o)
        return self._parts[alike]

    def _computes_parts(self, o: Operator) -> bool:
        for inside in modules_around(o.name):
            own = [x for x in self.description.operators if x.parameters and is_in(x.name, inside)]
            if own:
                break
        shared = [x for x in own if self.styles.get(x.name, "") in ("colwise", "rowwise", "on_parts")]
        if own and len(shared) == len(own):
            return True
        if any(is_in(b.name, o.name) and b.name != o.name for b in self.description.blocks):
            # Around all blocks: the loss, on the part of the vocabulary that the head made.
            last = [x for x in self.description.operators if x.parameters][-1]
            return self.styles.get(last.name) == "colwise"
        kernels = self.description.kernels
        attends = o.forward_kernels >= 0 and any(k.kind == "attention" for k in kernels[o.forward_kernels])
        return bool(shared) and attends

    def _scaled(self, o: Operator, inputs: int, outputs: int, style: str) -> Operator:
        """Activations and kernels of an operator that reads one in `inputs` and makes one in `outputs`."""
        least = max(inputs, outputs)
        if least == 1:
            return o
        # A linear saves its input, and works on the gradients of both.
        if o.split_shape is not None and o.multiplies:
            out, in_ = (
                n * (least if i == (0 if outputs > 1 else 1) else 1) for i, n in enumerate(o.split_shape)
            )
            work = (in_ / inputs + out / outputs) / (in_ + out)
        else:
            work = (1 / inputs + 1 / outputs) / 2
        return dataclasses.replace(
            o,
            saved_bytes_per_sample=-(-o.saved_bytes_per_sample // inputs),
            saved_bytes_fixed=o.saved_bytes_fixed if style else -(-o.saved_bytes_fixed // inputs),
            **{name: round(getattr(o, name) * work) for name in WORK},
            **({name: round(getattr(o, name) / least) for name in WORK_FIXED} if style else {}),
            waiting_gradient_bytes=0 if style else o.waiting_gradient_bytes,
            flops_per_sample=-(-o.flops_per_sample // least),
            forward_kernels=self._kernel_list(o.forward_kernels, least, work, style, o),
            backward_kernels=self._kernel_list(o.backward_kernels, least, work, style, o),
        )

    def _kernel_list(self, at: int, ranks: int, moved: float, style: str, o: Operator) -> int:
        if at < 0:
            return at
        key = (at, ranks, round(moved, 6), style, o.split_shape)
        if key not in self._known:
            self._known[key] = len(self._kernels)
            self._kernels.append(
                tuple(_local_kernel(k, ranks, moved, style, o.split_shape) for k in self._kernels[at])
            )
        return self._known[key]


def _local_kernel(k: Kernel, ranks: int, moved: float, style: str, split: tuple[int, int] | None) -> Kernel:
    """`moved`: the part of the bytes that grow with the batch. What does not grow belongs to weights, of which a part is
    left."""
    dimension, fixed = k.dimension, k.bytes_fixed
    if style:
        fixed = -(-fixed // ranks)
        if k.kind == "product":
            local = min(split) if split is not None else k.dimension // ranks
            dimension = min(k.dimension, local) if k.dimension else 0
    return dataclasses.replace(
        k,
        flops_per_sample=-(-k.flops_per_sample // ranks),
        flops_fixed=-(-k.flops_fixed // ranks),
        bytes_per_sample=round(k.bytes_per_sample * moved),
        bytes_fixed=fixed,
        dimension=dimension,
    )
