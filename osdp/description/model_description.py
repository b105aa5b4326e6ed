"""ModelDescription: the result of `describe`. Plain values; no tensors, no modules."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

from osdp.base.json_files import InFile
from osdp.base.schema import AtLeast, OneOf

KINDS = ("product", "attention", "other")  # of kernels


@dataclass(frozen=True)
class Parameter:
    """One parameter tensor; tied names are one Parameter.

    `name` is its first name in `named_parameters()`, `aliases` are the others. `shape` is the full, unsharded
    shape.
    """

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str  # "float32", as in str(torch.float32) without "torch."
    trainable: bool

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Read:
    """A parameter's read by a module that calls others: which forward of theirs came before says at which place of the
    module's own forward it is, and so in which stage of a pipeline."""

    parameter: str
    module: str  # the innermost one that ran
    after: str  # the module with parameters whose call ended last before; "": none had


@dataclass(frozen=True)
class Kernel:
    """Equal kernels of an operator, at any batch size b: flops and bytes are fixed + b x per sample.

    Note [Kernels] in osdp/description/kernels.py.
    """

    kind: Annotated[str, OneOf(KINDS)]
    count: Annotated[int, AtLeast(1)]
    flops_per_sample: int  # of each
    flops_fixed: int
    bytes_per_sample: int  # read and written by each
    bytes_fixed: int
    dimension: Annotated[int, AtLeast(0)] = 0  # of a product: the least that does not grow with the batch;
    dimension_per_sample: int = 0  # the least that does. 0: none, or unknown


@dataclass(frozen=True)
class Operator:
    """Parameters that share one choice, and the module calls that use them.

    Usually the parameters that one module owns directly. `name` is that module's name ("" is the root).
    `parameters` is empty for the call of a module without parameters that takes time or activation memory.
    """

    name: str
    kind: str  # the owner's class name: "Linear", "LayerNorm", ...; "Embedding" for subclasses of it, too
    parameters: tuple[Parameter, ...]
    gather_at: tuple[str, ...]  # modules whose calls gather these parameters, in order; see `describe`
    traced: bool  # False: no call used them in the traced run; gather_at is then the nearest callable parent
    # Calls of the `gather_at` modules in one forward, together; 0: another stage of a pipeline has what they compute.
    calls: int
    block: str | None  # the recomputable block (a key of ModelDescription.blocks) that contains it
    # (out, in) of the weight, or (rows, columns) of the table, where its calls can be computed in slices; else None.
    # Of a convolution (out, weights of one output). See `transposed`.
    split_shape: tuple[int, int] | None
    parameter_bytes: int
    buffer_bytes: int  # of buffers that the module alone has
    saved_bytes_per_sample: int  # activations saved for backward; shared storage is counted once
    saved_bytes_fixed: int  # the part that does not grow with the batch
    flops_per_sample: int  # of the forward; the backward is counted as twice that
    # Memory besides saved activations while its forward or backward runs: gradients of activations and
    # temporaries of kernels.
    work_bytes_per_sample: int = 0
    work_bytes_fixed: int = 0
    forward_work_bytes_per_sample: int = 0  # the same while its forward runs, and its backward
    forward_work_bytes_fixed: int = 0
    backward_work_bytes_per_sample: int = 0
    backward_work_bytes_fixed: int = 0
    # Its kernels in forward and in backward: positions in ModelDescription.kernels; -1: unknown.
    forward_kernels: Annotated[int, AtLeast(-1)] = -1
    backward_kernels: Annotated[int, AtLeast(-1)] = -1
    # Those of `gather_at` that look rows up (nn.Embedding) in what can be sliced; the others multiply with it.
    look_ups: tuple[str, ...] = ()
    transposed: bool = False  # the weight that can be sliced is stored as [in, out] (transformers' Conv1D)
    # Of a convolution that can be computed in slices, of its outputs: the weights between one output and one input, which
    # are the places of its kernel; else 0.
    kernel_places: Annotated[int, AtLeast(0)] = 0
    # Of a linear: whether forward cuts its outputs in parts (a fused projection), and in how many groups (heads) it views
    # them; 0: none. Which ranks can share it by its outputs follows (tensor parallelism).
    output_cut: bool = False
    output_groups: Annotated[int, AtLeast(0)] = 0
    # The part of its work that is gradients of matrices that are read several times, which autograd keeps for their sum.
    # There are none where these are computed in slices.
    waiting_gradient_bytes: int = 0
    # Where a module outside of blocks reads parameters around others with some, and where one is called at several places:
    # each distinct read, in order.
    reads: tuple[Read, ...] = ()
    # Of one without parameters, outside of blocks: it computes from the model's inputs alone (a rotary table), so each stage
    # of a pipeline does that itself.
    of_inputs: bool = False

    @property
    def multiplies(self) -> bool:
        """Whether it is a product that can be computed in slices, and no table or convolution."""
        return self.split_shape is not None and not self.look_ups and not self.kernel_places

    @property
    def stored_shape(self) -> tuple[int, int] | None:
        """Rows and columns of the weight that can be sliced, as it is stored."""
        if self.split_shape is None or not self.transposed:
            return self.split_shape
        return self.split_shape[1], self.split_shape[0]

    def slices(self, parameter: Parameter) -> bool:
        """Whether the parameter has the shape of the weight that can be sliced."""
        shape = parameter.shape
        if self.kernel_places and len(shape) > 2:
            shape = (shape[0], math.prod(shape[1:]))
        return self.split_shape is not None and shape == self.stored_shape

    def gathered_at(self, places: tuple[str, ...]) -> Operator:
        """The same operator, gathered at the calls of other modules. A table is not sliced then, since its look-ups are
        not those modules' calls."""
        if not self.look_ups or set(self.gather_at) <= set(places):
            return replace(self, gather_at=places)
        return replace(self, gather_at=places, look_ups=(), split_shape=None)


# Fields of an operator: what it saves, and what it works with, of each sample and always.
SAVED_BYTES = ("saved_bytes_per_sample", "saved_bytes_fixed")
WORK_BYTES = tuple(
    f"{way}work_bytes_{part}" for way in ("", "forward_", "backward_") for part in ("per_sample", "fixed")
)


@dataclass(frozen=True)
class Block:
    """A module that can be recomputed in backward; if it is, only its inputs are saved."""

    name: str
    input_bytes_per_sample: int


@dataclass(frozen=True)
class Buffers:
    """Buffers of modules that are no operators, or that several modules share: which of a pipeline's stages have them
    follows from the modules."""

    modules: tuple[str, ...]  # that have these
    bytes: int


@dataclass(frozen=True)
class Begin:
    """A module that forward calls outside of blocks, and why no stage of a pipeline can begin there; "": one can.
    Note [Where a stage may begin] in osdp/description/passages.py."""

    module: str
    why_not: str


CPU, ACCELERATOR = "cpu", "accelerator"


@dataclass(frozen=True, repr=False)
class ModelDescription(InFile):
    """The operators of a model in execution order, measured on one sample, whose dimension 0 is the batch of one rank.

    `osdp.describe` makes it.

    >>> description = osdp.describe(model, inputs)
    >>> description.save("model.json")
    """

    KIND = "description"

    name: str  # the root module's class name
    operators: tuple[Operator, ...]
    blocks: tuple[Block, ...]
    sample_batch: int  # the batch size of the sample that was traced; 0: described without one
    input_bytes_per_sample: int
    # Bytes of the model's outputs that are not saved for backward anyway: logits, caches. Training loops
    # usually hold them until the backward is over.
    output_bytes_per_sample: int = 0
    # Blocks that could be recomputed but for changing their inputs (a KV cache).
    blocks_changing_inputs: tuple[str, ...] = ()
    # The name of the precision whose activations are counted; "" in older files, which do not say.
    precision: str = ""
    kernels: tuple[tuple[Kernel, ...], ...] = ()  # each list once, of whichever operators have it
    # What will train the model: CPU or ACCELERATOR; "" where both hold the same memory.
    device: str = ""
    buffers: tuple[Buffers, ...] = ()  # those that no operator has alone
    begins: tuple[Begin, ...] = ()  # in the order of their first calls; none: it is not known

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(o.buffer_bytes for o in self.operators) + sum(b.bytes for b in self.buffers)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters, in their own dtypes."""
        return sum(o.parameter_bytes for o in self.operators)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of all operators, in execution order."""
        return tuple(p for o in self.operators for p in o.parameters)
