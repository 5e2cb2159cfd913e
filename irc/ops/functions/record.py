"""What irc knows of a pointwise function: one record, in the file of its family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from irc.ops.functions.formula import Formula


@dataclass(frozen=True)
class Text:
    """A function in the language of a target, by what its operands are; empty where it has none.

    Attributes:
        floats: for float32, in which half types are held, and for float64.
        doubles: for float64, where it is another.
        integers: for integers.
        bools: for truth values.
    """

    floats: str = ""
    doubles: str = ""
    integers: str = ""
    bools: str = ""


@dataclass(frozen=True)
class Accuracy:
    """How exact a function is on the CPU: the largest error in ulp that it may have.

    An ulp is the distance between the neighbours of the exact result in its dtype. The bounds hold
    on the stated range of arguments, over all of which they are measured (``python -m
    tests.numerics`` prints them; a test fails above a bound). Outside it results vanish or
    overflow, or (sin, cos, tan of float32) come from the C library, as all of float64 but the
    plain ones do; there its errors are the bounds. What is rounded to bfloat16 is within 0.55 ulp
    of bfloat16 where results are above 2e-36 (:mod:`irc.backends.cpu.vector.rounded`).

    Attributes:
        f32: largest error of float32 in ulp.
        f64: largest error of float64 in ulp.
        low: least argument of the range.
        high: greatest argument of the range.
        without_fma: the bound of float32 on machines without fused multiply-add, as a multiple.
    """

    f32: float
    f64: float
    low: float
    high: float
    without_fma: float = 1.5


@dataclass(frozen=True)
class Pointwise:
    """One function of scalars applied to tensors elementwise, with numpy broadcasting.

    Names of libraries may be several, with blanks between them. Templates of a target name
    operands ``{0}``, ``{1}``, ``{2}``; :mod:`irc.backends.triton.functions` and
    :mod:`irc.backends.cuda.functions` say what else they may hold.

    Attributes:
        name: ``fn`` of a ``flow.pointwise``.
        arity: the number of operands.
        aten: an ATen function with the same meaning, where it is not called ``name``.
        linear: groups of operands; P(sum) passes from all of a group at once, the rest being B.
        monotone: true where P(max) and P(min) pass (non-decreasing in its only operand).
        result: ``same`` as the operands, ``bool``, or ``type`` (given by the op's result type).
        complex: true where it has a meaning for complex operands, with a result as stated here; the
            absolute value, say, is real. What has none is an op of the library's there.
        flops: cost per element, in arithmetic operations, for the roofline.
        derivative: the gradient of each operand, None where it has none. Formulas prefer the result
            where both would do: it is one value less to keep. At kinks they take torch's side.
        flat: true where the derivative is 0 wherever it exists, or is to be taken for that.
        torch: ops of ATen that are this function and no more, as ``max.other``.
        onnx: operators of ONNX that are.
        llvm: the intrinsic that computes it on the CPU.
        libm: the function of C that computes it on the CPU, for float64 alone where
            `irc.backends.cpu.vector` has one of this name for float32.
        composed: the formula that computes it from other functions, on the CPU where there is no
            ``llvm`` or ``libm``, and on a target that has no text.
        triton: its text in Triton; that of floats where it is no more.
        cuda: its text in CUDA C++; likewise.
        accuracy: how exact it is on the CPU, for functions of one operand that round.
    """

    name: str
    arity: int = 1
    aten: str = ""
    linear: tuple[tuple[int, ...], ...] = ()
    monotone: bool = False
    result: Literal["same", "bool", "type"] = "same"
    complex: bool = False
    flops: int = 1
    derivative: tuple[Formula | None, ...] = ()
    flat: bool = False
    torch: str = ""
    onnx: str = ""
    llvm: str = ""
    libm: str = ""
    composed: Formula | None = None
    triton: str | Text = ""
    cuda: str | Text = ""
    accuracy: Accuracy | None = None

    @property
    def reference(self) -> str:
        """The function that says what it means, by a name that interpreters resolve."""
        return f"aten::{self.aten or self.name}"


def text(template: str | Text) -> Text:
    """Return the text of a target for all operands."""
    return template if isinstance(template, Text) else Text(floats=template)
