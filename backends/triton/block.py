"""Steps of a kernel as Triton statements over blocks.

A *coordinate* says how a dim of the space appears: an expression of the block's rank (or a
scalar), the block axis it runs along, and the mask of its tail. Values keep the set of axes on
which they vary, so that an access is masked on just those axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from irc.backends.triton.functions import TYPES, expression
from irc.errors import InternalError
from irc.kernels.arithmetic import held, rounded
from irc.kernels.form import Form, Step
from irc.kernels.gpu.run_time import RunTimeSize
from irc.kernels.source import Source, quoted
from irc.kernels.support import template_of


@dataclass(frozen=True)
class Coordinate:
    """How one dim of the space appears in a block; ``axis`` is None for a scalar."""

    expression: str
    axis: int | None = None


@dataclass(frozen=True)
class Value:
    """A value in the emitted code and the block axes on which it varies."""

    name: str
    axes: frozenset[int]
    is_block: bool


class Block:
    """Emits steps over one choice of coordinates.

    Args:
        form: the kernel.
        source: where statements go.
        coordinates: of each dim that accesses here use.
        masks: of each block axis, or None where the tile divides the size.
        rank: the number of block axes.
        prefix: of value names, so that two blocks in one function differ.
    """

    def __init__(
        self,
        form: Form,
        source: Source,
        coordinates: Mapping[int, Coordinate],
        masks: Mapping[int, str | None],
        rank: int,
        prefix: str = "v",
    ) -> None:
        self.form = form
        self.source = source
        self.coordinates = coordinates
        self.masks = masks
        self.rank = rank
        self.prefix = prefix
        self.values: dict[int, Value] = {}

    def emit(self, steps: Iterable[Step]) -> None:
        """Append statements for loads, constants, indices, pointwise functions and stores."""
        for step in steps:
            match step.kind:
                case "load":
                    self._load(step)
                case "constant":
                    self._constant(step)
                case "index":
                    self._index(step)
                case "pointwise":
                    self._pointwise(step)
                case "store":
                    self._store(step)
                case _:
                    raise InternalError(f"a block cannot emit task.{step.kind}")

    def define(self, step: Step, text: str, axes: frozenset[int], *, is_block: bool) -> None:
        """Append ``name = text`` for a step's result."""
        name = f"{self.prefix}{step.result}"
        note = f"  # {quoted(step.note)}" if step.note else ""
        self.source.line(f"{name} = {text}{note}")
        self.values[step.result] = Value(name, axes, is_block)

    def mask(self, axes: Iterable[int]) -> str | None:
        """Return the mask of the tails of some axes."""
        masks = [mask for axis in sorted(axes) if (mask := self.masks[axis]) is not None]
        return " & ".join(masks) or None

    def _address(self, step: Step) -> tuple[str, frozenset[int], bool]:
        place = step.place
        terms: list[str] = []
        axes: set[int] = set()
        for dim, stride in enumerate(place.strides):
            if stride:
                coordinate = self.coordinates[dim]
                terms.append(_times(coordinate.expression, stride))
                axes |= set() if coordinate.axis is None else {coordinate.axis}
        is_block = bool(axes)
        if step.kind == "load":
            for index, stride in zip(step.operands, place.index_strides, strict=True):
                value = self.values[index]
                terms.append(_times(f"{value.name}.to(tl.int64)", stride))
                axes |= value.axes
                is_block |= value.is_block
        if place.offset or not terms:
            terms.append(str(place.offset))
        name = self.form.buffer_name(place.buffer)
        return f"{name} + {' + '.join(terms)}", frozenset(axes), is_block

    def _load(self, step: Step) -> None:
        address, axes, is_block = self._address(step)
        mask = self.mask(axes)
        tail = f", mask={mask}, other=0" if mask else ""
        text = f"tl.load({address}{tail})"
        if held(step.dtype) != step.dtype:
            text += ".to(tl.float32)"
        self.define(step, text, axes, is_block=is_block)

    def _store(self, step: Step) -> None:
        address, axes, is_block = self._address(step)
        value = self.values[step.operands[0]]
        stored = self.form.buffers[step.place.buffer].dtype
        text = value.name
        if stored != held(step.operand_dtypes[0]):
            text += " != 0" if stored == "i1" else f".to({TYPES[stored]})"
        if value.is_block and not is_block:
            address += f" + tl.zeros({[1] * self.rank}, tl.int32)"
        for missing in sorted(value.axes - axes):
            # A dim of size 1 has no stride; its tile has more rows, of which one is stored.
            (place,) = {c.expression for c in self.coordinates.values() if c.axis == missing}
            address, axes = f"{address} + 0 * {place}", axes | {missing}
        mask = self.mask(axes)
        self.source.line(f"tl.store({address}, {text}{f', mask={mask}' if mask else ''})")

    def _constant(self, step: Step) -> None:
        text = f"tl.full((), {literal(step.literal, step.dtype)}, {TYPES[held(step.dtype)]})"
        self.define(step, text, frozenset(), is_block=False)

    def _index(self, step: Step) -> None:
        coordinate = self.coordinates[step.dim]
        axes = frozenset(() if coordinate.axis is None else (coordinate.axis,))
        text = f"({coordinate.expression}).to(tl.int64)"
        self.define(step, text, axes, is_block=bool(axes))

    def _pointwise(self, step: Step) -> None:
        template = template_of(step, expression)
        assert template is not None, "check_supported has run"
        operands = [self.values[v] for v in step.operands]
        text = template.format(*[v.name for v in operands], T=TYPES[held(step.dtype)])
        axes = frozenset[int]().union(*[v.axes for v in operands])
        self.define(step, text, axes, is_block=any(v.is_block for v in operands))


def literal(value: float, dtype: str) -> str:
    """Return a constant, rounded to its dtype, as Triton reads it.

    >>> literal(0.1, "f16"), literal(float("-inf"), "f32"), literal(3.0, "i32")
    ('0.099975586', 'float("-inf")', '3')
    """
    if isinstance(value, RunTimeSize):
        # A mean over a dim divides by its size.
        return f"({value}).to({TYPES[held(dtype)]})"
    if dtype == "i1":
        return str(int(bool(value)))
    if held(dtype) not in ("f32", "f64"):
        return str(int(value))
    number = rounded(float(value), dtype)
    if number != number or number in (float("inf"), float("-inf")):
        return f'float("{number}")'
    if dtype == "f64":
        return repr(number)
    import numpy as np

    return str(np.float32(number))


def _times(text: str, stride: int) -> str:
    return text if stride == 1 else f"{text} * {stride}"
