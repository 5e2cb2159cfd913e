"""Steps of a kernel as C++ statements for one point of the space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from irc.backends.cuda.functions import TYPES, expression, unsigned
from irc.errors import InternalError
from irc.kernels.arithmetic import INTEGERS, accumulator, held, neutral, rounded
from irc.kernels.form import Form, Step
from irc.kernels.gpu.run_time import RunTimeSize
from irc.kernels.source import Source, quoted
from irc.kernels.support import template_of

INDEX = "irc_index"
"""The type of positions in a kernel that takes sizes; the file defines it."""


class Scalar:
    """Emits steps over one choice of coordinates.

    Args:
        form: the kernel.
        source: where statements go.
        coordinates: the C expression of each dim that accesses here use (names, not sums).
        values: names of values that other code has made.
    """

    def __init__(
        self,
        form: Form,
        source: Source,
        coordinates: Mapping[int, str],
        values: Mapping[int, str] | None = None,
    ) -> None:
        self.form = form
        self.source = source
        self.coordinates = coordinates
        self.values = dict(values or {})
        # A value that outlives its loop is an array there: name -> place.
        self.kept: dict[int, str] = {}
        self.load_text: Callable[[Step, str], str] | None = None
        self.store_text: Callable[[Step, str], str] | None = None

    def emit(self, steps: Iterable[Step]) -> None:
        """Append statements for all but reductions and contractions."""
        for step in steps:
            match step.kind:
                case "load":
                    self.define(step, self._load(step))
                case "constant":
                    self.values[step.result] = literal(step.literal, step.dtype)
                case "index":
                    self.define(step, f"(long long){self.coordinates[step.dim]}")
                case "pointwise":
                    self.define(step, self._pointwise(step))
                case "store":
                    self._store(step)
                case _:
                    raise InternalError(f"a point cannot emit task.{step.kind}")

    def define(self, step: Step, text: str) -> None:
        """Append the definition of a step's result."""
        note = f"  // {quoted(step.note)}" if step.note else ""
        if (place := self.kept.get(step.result)) is not None:
            self.source.line(f"{place} = {text};{note}")
            self.values[step.result] = place
            return
        self.source.line(f"const {TYPES[held(step.dtype)]} v{step.result} = {text};{note}")
        self.values[step.result] = f"v{step.result}"

    def address(self, step: Step) -> str:
        """Return the element that a load or store touches."""
        place = step.place
        terms = [
            times(self.coordinates[dim], stride)
            for dim, stride in enumerate(place.strides)
            if stride
        ]
        if step.kind == "load":
            for index, stride in zip(step.operands, place.index_strides, strict=True):
                terms.append(times(f"(long long){self.values[index]}", stride))
        if place.offset or not terms:
            terms.append(str(place.offset))
        return " + ".join(terms)

    def _load(self, step: Step) -> str:
        name = self.form.buffer_name(step.place.buffer)
        text = f"{name}[{self.address(step)}]"
        if self.load_text is not None:
            text = self.load_text(step, text)
        return f"irc_float({text})" if held(step.dtype) != step.dtype else text

    def _store(self, step: Step) -> None:
        target = f"{self.form.buffer_name(step.place.buffer)}[{self.address(step)}]"
        if self.store_text is not None:
            target = self.store_text(step, target)
        stored = self.form.buffers[step.place.buffer].dtype
        self.source.line(f"{target} = {stored_as(self.values[step.operands[0]], stored)};")

    def _pointwise(self, step: Step) -> str:
        template = template_of(step, expression)
        assert template is not None, "check_supported has run"
        return template.format(
            *[self.values[v] for v in step.operands],
            T=TYPES[held(step.dtype)],
            U=unsigned(step.dtype),
            f="" if "f64" in step.operand_dtypes else "f",
        )


def index_type(form: Form) -> str:
    """Return the C type of a position; of a kernel that takes sizes, each launch chooses it."""
    if form.symbols:
        return INDEX
    return "long long" if form.is_wide else "int"


def stored_as(text: str, dtype: str) -> str:
    """Return a held value as it is stored."""
    return f"irc_round<{TYPES[dtype]}>({text})" if held(dtype) != dtype else text


def literal(value: float, dtype: str) -> str:
    """Return a constant, rounded to its dtype, as C reads it.

    >>> literal(0.1, "f16"), literal(float("-inf"), "f32"), literal(-(2**63), "i64")
    ('0.099975586f', '(-INFINITY)', '(-9223372036854775807LL - 1)')
    """
    if isinstance(value, RunTimeSize):
        # A mean over a dim divides by its size.
        return f"(({TYPES[held(dtype)]}){value})"
    if dtype == "i1":
        return "true" if value else "false"
    if dtype in INTEGERS:
        return _integer(int(value), dtype)
    number = rounded(float(value), dtype)
    if number != number:
        return "NAN" if held(dtype) == "f32" else "(double)NAN"
    if number in (float("inf"), float("-inf")):
        text = "INFINITY" if number > 0 else "(-INFINITY)"
        return text if held(dtype) == "f32" else f"(double){text}"
    text = repr(number)
    if held(dtype) == "f32":
        import numpy as np

        text = f"{np.float32(number)!s}f"
    return f"({text})" if number < 0 else text


def _integer(value: int, dtype: str) -> str:
    if dtype == "i64":
        return f"({value + 1}LL - 1)" if value < 0 else f"{value}LL"
    text = f"({value + 1} - 1)" if value == -(2**31) else str(value)
    return (
        f"({TYPES[dtype]}){text if value >= 0 else f'({text})'}" if dtype != "i32" else f"({text})"
    )


def joined(step: Step, left: str, right: str) -> str:
    """Return the combination of two partial results of a reduction."""
    match step.fn:
        case "sum":
            return f"{left} + {right}"
        case "prod":
            return f"{left} * {right}"
        case "max" | "any":
            return f"irc_max({left}, {right})"
        case _:
            return f"irc_min({left}, {right})"


def accumulator_type(step: Step) -> str:
    """Return the C type in which a reduction runs; narrow integers use int, which shuffles."""
    kind = accumulator(step)
    return TYPES[kind] if kind in ("f64", "f32", "i64") else "int"


def padding(step: Step) -> str:
    """Return the neutral element of a reduction."""
    kind = accumulator(step)
    return literal(neutral(step), kind if kind in ("f64", "f32", "i64") else "i32")


def decode(source: Source, flat: str, sizes: Mapping[str, int], kind: str = "const int") -> None:
    """Append definitions that split a flat position row-major into named indices."""
    inner = 1
    parts: list[str] = []
    for number, (name, size) in enumerate(reversed([*sizes.items()])):
        text = flat if inner == 1 else f"{flat} / {inner}"
        if number < len(sizes) - 1:
            text += f" % {size}"
        parts.append(f"{kind} {name} = {text};")
        inner *= size
    for part in reversed(parts):
        source.line(part)


def times(text: str, stride: int) -> str:
    """Return a term of an address."""
    return text if stride == 1 else f"{text} * {stride}"
