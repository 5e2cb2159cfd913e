"""Programs written by hand for what random ones meet seldom: long sums, tails, reuse of memory."""

from __future__ import annotations

from typing import Any

from tests.fuzz.program import Input, Node, Program


def _program(
    inputs: dict[str, tuple[tuple[int, ...], str]],
    nodes: list[tuple[str, str, tuple[str, ...], dict[str, Any]]],
    *outputs: str,
) -> Program:
    return Program(
        1,
        tuple(Input(name, shape, dtype) for name, (shape, dtype) in inputs.items()),
        tuple(Node(*node) for node in nodes),
        outputs,
    )


def linear(m: int, n: int, k: int, dtype: str = "f32") -> Program:
    """A linear layer with bias and ReLU."""
    return _program(
        {"x0": ((m, k), dtype), "x1": ((n, k), dtype), "x2": ((n,), dtype)},
        [("v0", "linear", ("x0", "x1", "x2"), {}), ("v1", "relu", ("v0",), {})],
        "v1",
    )


def masked(rows: int, columns: int, dtype: str = "f32") -> Program:
    """Softmax under a mask."""
    return _program(
        {"x0": ((rows, columns), dtype), "x1": ((rows, columns), "i1")},
        [("v0", "masked_softmax", ("x0", "x1"), {})],
        "v0",
    )


def sums(rows: int, columns: int, dtype: str = "f32") -> Program:
    """Sums over rows and over columns, and a norm."""
    keep = {"keep": True}
    return _program(
        {"x0": ((rows, columns), dtype), "x1": ((columns,), dtype)},
        [
            ("v0", "sum", ("x0",), {"dim": 1, **keep}),
            ("v1", "sum", ("x0",), {"dim": 0, **keep}),
            ("v2", "rms_norm", ("x0", "x1"), {"eps": 0.01}),
        ],
        "v0", "v1", "v2",
    )  # fmt: skip


def crossed(size: int = 24) -> Program:
    """Values of one size that live across others: what shares memory too early is seen."""
    shape = ((size, size), "f32")
    return _program(
        {"x0": shape, "x1": shape},
        [
            ("v0", "matmul", ("x0", "x1"), {}),
            ("v1", "matmul", ("v0", "x1"), {}),
            ("v2", "matmul", ("v1", "v0"), {}),
            ("v3", "matmul", ("v2", "v1"), {}),
            ("v4", "sum", ("v0",), {"dim": 0, "keep": True}),
            ("v5", "matmul", ("v3", "v0"), {}),
            ("v6", "add", ("v5", "v4"), {}),
        ],
        "v6",
    )


def strided(rows: int = 7, columns: int = 19) -> Program:
    """Transposed and sliced operands of a subtraction."""
    return _program(
        {"x0": ((rows, columns), "f32"), "x1": ((columns, rows), "f32")},
        [
            ("v0", "transpose", ("x1",), {"a": 0, "b": 1}),
            ("v1", "sub", ("x0", "v0"), {}),
            ("v2", "slice", ("v1",), {"dim": 1, "start": 3, "stop": 17, "step": 2}),
            ("v3", "exp", ("v2",), {}),
        ],
        "v1", "v3",
    )  # fmt: skip


def attention(rows: int = 19, keys: int = 33) -> Program:
    """Causal attention at odd sizes."""
    return _program(
        {
            "x0": ((1, 2, rows, 16), "f32"),
            "x1": ((1, 2, keys, 16), "f32"),
            "x2": ((1, 2, keys, 16), "f32"),
        },
        [("v0", "attention", ("x0", "x1", "x2"), {"causal": True})],
        "v0",
    )


DIRECTED: dict[str, Program] = {
    "linear, short": linear(13, 33, 17),
    "linear, long sum": linear(20, 40, 4100),
    "linear, one row": linear(1, 70, 37),
    "linear, split sum": linear(4, 8, 512, "f16"),
    "linear, halves": linear(35, 70, 40, "bf16"),
    "masked softmax": masked(4, 37),
    "wide softmax": masked(3, 1300),
    "sums": sums(9, 43),
    "tall sums": sums(130, 5),
    "sums of halves": sums(7, 77, "bf16"),
    "crossed": crossed(),
    "strided": strided(),
    "attention": attention(),
}
