"""A task kernel as emitters read it: plain steps over merged dims.

``read`` drops dims of size 1 and merges neighbours that every load and store walks as one, so that
``softmax`` over ``[8, 12, 128 | 128]`` is ``[12288 | 128]`` and an addition of contiguous tensors
is one flat loop. Each step has a *level*: the number of reductions that stand before it. A loop
over columns can compute all steps of one level; the next level needs another loop, or kept values.

Load, then max (level 0); subtract, exponential, sum (level 1); divide, store (level 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, TypeAlias

from xdsl.ir import Operation, SSAValue

from irc.dialects.attributes import to_python
from irc.dialects.flow import FlowOp
from irc.dialects.size import Dim, Size, value_of
from irc.dialects.task import KernelOp
from irc.dialects.task_types import BufferType, ValueType

Kind: TypeAlias = Literal["load", "store", "constant", "index", "pointwise", "reduce", "contract"]
Read: TypeAlias = Callable[[Dim], int]
"""What a size of a kernel becomes in its form: a number, or what stands for one."""


@dataclass(frozen=True)
class Access:
    """A load's or store's place: ``offset + sum(strides * i) + sum(index_strides * index)``."""

    buffer: int
    offset: int
    strides: tuple[int, ...]
    index_strides: tuple[int, ...] = ()
    index_counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Step:
    """One op of the body.

    Attributes:
        kind: the op's name without ``task.``.
        result: the number of the value it makes; -1 for a store.
        operands: numbers of the values it reads (a load: its indices).
        dtype: of the result; for a store, of the buffer.
        full: one value per point of the space, not one per task.
        level: reductions before it.
        operand_dtypes: dtypes of the operands.
        fn: the function of a pointwise step or reduction.
        access: of a load or store.
        literal: of a constant.
        dim: of an index.
        note: the id of the flow op that it comes from.
    """

    kind: Kind
    result: int
    operands: tuple[int, ...]
    dtype: str
    full: bool
    level: int
    operand_dtypes: tuple[str, ...] = ()
    fn: str = ""
    access: Access | None = None
    literal: float | int = 0
    dim: int = -1
    note: str = ""

    @property
    def place(self) -> Access:
        """The access of a load or store."""
        assert self.access is not None, f"{self.kind} has no access"
        return self.access


@dataclass(frozen=True)
class Buffer:
    """A kernel argument."""

    size: int
    dtype: str


@dataclass(frozen=True)
class Form:
    """A kernel as plain data; dims and tiles are those after merging.

    With ``lengths`` it has several parts; its steps name the buffers of the first. With ``symbols``
    some of its numbers are :class:`irc.kernels.gpu.run_time.RunTimeSize`.
    """

    name: str
    template: str
    sizes: tuple[int, ...]
    num_parallel: int
    tile: tuple[int, ...]
    options: dict[str, int]
    buffers: tuple[Buffer, ...]
    num_inputs: int
    steps: tuple[Step, ...]
    sources: tuple[str, ...] = ()
    mapping: str = ""
    loc: str = "unknown"
    lengths: tuple[int, ...] = ()
    protected: int = field(default=0, compare=False)
    symbols: tuple[str, ...] = ()

    @property
    def parallel(self) -> tuple[int, ...]:
        """Sizes of the parallel dims."""
        return self.sizes[: self.num_parallel]

    @property
    def reduced(self) -> tuple[int, ...]:
        """Sizes of the reduced dims."""
        return self.sizes[self.num_parallel :]

    def buffer_name(self, index: int) -> str:
        """Return the argument name of a buffer: inputs x0, x1, ..., outputs y0, y1, ..."""
        return f"x{index}" if index < self.num_inputs else f"y{index - self.num_inputs}"

    @property
    def num_columns(self) -> int:
        """Points of the reduced dims."""
        return prod(self.reduced)

    @property
    def num_levels(self) -> int:
        """One more than the highest level."""
        return 1 + max((step.level for step in self.steps), default=0)

    @property
    def is_wide(self) -> bool:
        """True where an element's position needs 64 bits; not known of sizes at run time."""
        if self.symbols:
            return False
        return prod(self.sizes) >= 2**31 or any(b.size >= 2**31 for b in self.buffers)

    @cached_property
    def makers(self) -> dict[int, Step]:
        """The step that makes each value."""
        return {step.result: step for step in self.steps if step.result >= 0}

    def behind(self, values: Iterable[int], keep: Callable[[Step], bool]) -> set[int]:
        """Return the values among ``values`` and behind them whose steps pass ``keep``."""
        kept: set[int] = set()
        queue = list(values)
        while queue:
            value = queue.pop()
            if value not in kept and keep(self.makers[value]):
                kept.add(value)
                queue.extend(self.makers[value].operands)
        return kept


def number(size: Dim) -> int:
    """Return the number that a size is.

    Raises:
        UnboundSizeError: it is a name.
    """
    return value_of(size, {})


def read(kernel: KernelOp, sizes: Read = number) -> Form:
    """Return the merged form of a kernel, with what ``sizes`` makes of its sizes.

    Raises:
        UnboundSizeError: it has names, and ``sizes`` takes none.
    """
    form = replace(header(kernel, sizes), steps=tuple(_steps(kernel, sizes)))
    if form.lengths:
        return form  # of one dim
    return merge_dims(drop_unit_dims(form))


def header(kernel: KernelOp, sizes: Read = number) -> Form:
    """Return what a kernel is without its body: name, sizes, tile, buffers."""
    return Form(
        name=kernel.sym_name.data,
        template=kernel.template.data,
        sizes=tuple(map(sizes, kernel.extents)),
        num_parallel=kernel.num_parallel,
        tile=_tile(kernel),
        options=kernel.tile_sizes,
        buffers=tuple(
            Buffer(sizes(_buffer(a.type).elements), _buffer(a.type).dtype) for a in kernel.args
        ),
        num_inputs=kernel.num_inputs.value.data,
        steps=(),
        sources=() if kernel.sources is None else to_python(kernel.sources),
        mapping=str(kernel.task_mapping),
        loc=str(to_python(kernel.attributes["loc"])) if "loc" in kernel.attributes else "unknown",
        lengths=kernel.part_lengths,
        protected=2 if kernel.template.data == "matmul" else 0,
        symbols=kernel.symbols,
    )


def drop_unit_dims(form: Form) -> Form:
    """Remove dims of size 1 (m and n of a matmul stay, and something to reduce over)."""
    first = form.num_parallel - form.protected
    kept = [d for d, n in enumerate(form.sizes) if n != 1 or first <= d < form.num_parallel]
    last = len(form.sizes) - 1
    if last >= form.num_parallel and not any(d >= form.num_parallel for d in kept):
        kept.append(last)
    position = {d: i for i, d in enumerate(kept)}
    steps = [
        replace(s, kind="constant", literal=0, dim=-1)
        if s.kind == "index" and s.dim not in position
        else replace(s, dim=position.get(s.dim, -1))
        for s in form.steps
    ]
    return replace(
        form,
        sizes=tuple(form.sizes[d] for d in kept),
        num_parallel=sum(d < form.num_parallel for d in kept),
        tile=tuple(form.tile[d] for d in kept if d < form.num_parallel),
        steps=tuple(_restrided(s, lambda strides: tuple(strides[d] for d in kept)) for s in steps),
    )


def merge_dims(form: Form) -> Form:
    """Merge neighbours ``d, d + 1`` wherever all accesses and the tile allow."""
    d = len(form.sizes) - 2
    while d >= 0:
        if _merges(form, d):
            form = _merged(form, d)
        d -= 1
    return form


def _merges(form: Form, d: int) -> bool:
    if d == form.num_parallel - 1 or any(s.dim in (d, d + 1) for s in form.steps):
        return False
    inner = form.sizes[d + 1]
    if not all(
        s.access.strides[d] == s.access.strides[d + 1] * inner for s in form.steps if s.access
    ):
        return False
    if d >= form.num_parallel:
        return True
    if d + 1 >= form.num_parallel - form.protected:
        return False
    return form.protected > 0 or form.tile[d] == 1 or form.tile[d + 1] >= inner


def _merged(form: Form, d: int) -> Form:
    outer, inner = form.sizes[d : d + 2]
    parallel = d < form.num_parallel
    tile = form.tile
    if parallel:
        joined = tile[d] * inner if tile[d + 1] >= inner else tile[d + 1]
        tile = (*tile[:d], joined, *tile[d + 2 :])
    return replace(
        form,
        sizes=(*form.sizes[:d], outer * inner, *form.sizes[d + 2 :]),
        num_parallel=form.num_parallel - parallel,
        tile=tile,
        steps=tuple(
            replace(
                _restrided(s, lambda strides: (*strides[:d], *strides[d + 1 :])),
                dim=s.dim - (s.dim > d + 1),
            )
            for s in form.steps
        ),
    )


def _restrided(step: Step, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Step:
    if step.access is None:
        return step
    return replace(step, access=replace(step.access, strides=change(step.access.strides)))


def _tile(kernel: KernelOp) -> tuple[int, ...]:
    """Return the extents of what one worker of the grid does."""
    _, rest = kernel.task_mapping.split()
    return rest.task_shape if rest is not None else (1,) * kernel.num_parallel


def _steps(kernel: KernelOp, sizes: Read) -> Iterable[Step]:
    numbers: dict[SSAValue, int] = {}
    levels: dict[int, int] = {}
    buffers = {arg: i for i, arg in enumerate(kernel.args)}
    for op in kernel.body.block.ops:
        assert isinstance(op, FlowOp)
        step = _step(op, numbers, buffers, levels, sizes)
        if op.outputs:
            levels[step.result] = step.level + (step.kind in ("reduce", "contract"))
            numbers[op.outputs[0]] = step.result
        yield step


def _step(
    op: FlowOp,
    numbers: dict[SSAValue, int],
    buffers: dict[Any, int],
    levels: dict[int, int],
    sizes: Read,
) -> Step:
    plain: dict[str, Any] = op.plain
    values = [v for v in op.inputs if v not in buffers]
    touched = [buffers[v] for v in op.inputs if v in buffers]
    operands = tuple(numbers[v] for v in values)
    kinds = [_value(v.type) for v in values]
    result = _value(op.outputs[0].type) if op.outputs else None
    access = None
    if touched:
        own, strides, counts = (
            tuple(map(sizes, plain.get(name) or ()))
            for name in ("strides", "index_strides", "index_counts")
        )
        access = Access(touched[0], sizes(plain["offset"]), own, strides, counts)
    kind: Any = op.name.removeprefix("task.")
    return Step(
        kind=kind,
        result=len(numbers) if result else -1,
        operands=operands,
        dtype=result.dtype if result else kinds[0].dtype,
        full=result.is_full if result else kinds[0].is_full,
        level=max((levels[v] for v in operands), default=0),
        operand_dtypes=tuple(k.dtype for k in kinds),
        fn=plain.get("fn", ""),
        access=access,
        literal=_literal(plain.get("value", 0), sizes),
        dim=plain.get("dim", -1),
        note=_note(op),
    )


def _note(op: Operation) -> str:
    attribute = op.attributes.get("id")
    return "" if attribute is None else str(to_python(attribute))


def _literal(value: float | Sequence[float], sizes: Read) -> float | int:
    scalar = value if isinstance(value, int | float) else value[0]
    return sizes(scalar) if isinstance(scalar, Size) else scalar


def _value(kind: object) -> ValueType:
    assert isinstance(kind, ValueType), kind
    return kind


def _buffer(kind: object) -> BufferType:
    assert isinstance(kind, BufferType), kind
    return kind


def integer_bound(form: Form, index: int) -> int:
    """Return an exclusive bound for integers in a buffer: those used as indices stay inside."""
    limit = 2 if form.buffers[index].dtype == "i1" else 100
    loads = [s for s in form.steps if s.kind == "load"]
    read = {s.result for s in loads if s.place.buffer == index}
    for load in loads:
        for operand, count in zip(load.operands, load.place.index_counts, strict=True):
            if read & form.behind([operand], lambda s: True):
                limit = min(limit, count)
    return limit
