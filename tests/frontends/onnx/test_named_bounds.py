"""Slices, pads and ranges whose bounds are named sizes, in a session of many calls, as in numpy."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from irc.onnx import InferenceSession

END, FRONT = 2**63 - 1, -(2**63) + 1
CALLS = ((80, 20), (50, 50), (7, 3), (10, 30), (300, 1), (20, 80))
"""Lengths of x and of y, in the order in which they come: the second makes open plans."""


def session(nodes: list[onnx.NodeProto], **numbers: int) -> InferenceSession:
    """Return a session of x [B, N] and y [B, M], of which ``L`` is M, to z."""
    length = [
        helper.make_node("Shape", ["y"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["L"], axis=0),
        helper.make_node("Neg", ["L"], ["-L"]),
    ]
    known = {"one": 1, **numbers}
    graph = helper.make_graph(
        [*length, *nodes],
        "bounds",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "N"]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", "M"]),
        ],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([n], np.int64), name) for name, n in known.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return InferenceSession(model)


def holds(run: InferenceSession, wanted: Callable[[np.ndarray, int], np.ndarray]) -> None:
    for length, other in CALLS:
        x = np.arange(2 * length, dtype=np.float32).reshape(2, length)
        (result,) = run.run(None, {"x": x, "y": np.ones((2, other), np.float32)})
        np.testing.assert_array_equal(result, wanted(x, other), err_msg=f"{length}, {other}")


def clipped(x: np.ndarray, start: int, stop: int, step: int) -> np.ndarray:
    """Return a slice as the specification has it: a start before the front is the front."""
    size = x.shape[1]
    start = max(start + size if start < 0 else start, 0)
    if step > 0:
        stop = max(stop + size if stop < 0 else stop, 0)
        return x[:, start:stop:step]
    stop = stop + size if stop < 0 else stop
    return x[:, list(range(min(start, size - 1), max(min(stop, size - 1), -1), step))]


@pytest.mark.parametrize("step", [1, 2, -1, -3])
@pytest.mark.parametrize(
    ("start", "stop"), [("-L", "end"), ("front", "-L"), ("L-4", "end"), ("front", "L")]
)
def test_slices(start: str, stop: str, step: int) -> None:
    if step < 0:
        start, stop = stop, start
    nodes = [
        helper.make_node("Sub", ["L", "four"], ["L-4"]),
        helper.make_node("Slice", ["x", start, stop, "one", "step"], ["z"]),
    ]
    run = session(nodes, four=4, end=END, front=FRONT if step < 0 else 0, step=step)
    numbers: dict[str, Callable[[int], int]] = {
        "-L": lambda n: -n,
        "L": lambda n: n,
        "L-4": lambda n: n - 4,
        "end": lambda _: 10**6,
        "front": lambda _: -(10**6) if step < 0 else 0,
    }
    holds(run, lambda x, n: clipped(x, numbers[start](n), numbers[stop](n), step))


@pytest.mark.parametrize("mode", ["constant", "edge", "wrap", "reflect"])
def test_pads_up_to_a_length(mode: str) -> None:
    """The padding is y's length beside x's; negative, it cuts off."""
    nodes = [
        helper.make_node("Shape", ["x"], ["own"]),
        helper.make_node("Gather", ["own", "one"], ["size"], axis=0),
        helper.make_node("Sub", ["L", "size"], ["more"]),
        helper.make_node("Concat", ["none", "none", "none", "more"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["z"], mode=mode),
    ]

    def wanted(x: np.ndarray, n: int) -> np.ndarray:
        more = n - x.shape[1]
        return np.pad(x, [(0, 0), (0, more)], mode) if more > 0 else x[:, : x.shape[1] + more]

    holds(session(nodes, none=0), wanted)


def test_pads_on_both_sides_by_a_difference() -> None:
    """A length that is twice one size less another is negative at some: those are not tried."""
    nodes = [
        helper.make_node("Shape", ["x"], ["own"]),
        helper.make_node("Gather", ["own", "one"], ["size"], axis=0),
        helper.make_node("Sub", ["L", "size"], ["more"]),
        helper.make_node("Concat", ["none", "more", "none", "more"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["z"], mode="edge"),
    ]
    run = session(nodes, none=0)
    for length, other in ((80, 90), (50, 50), (30, 33), (50, 60)):
        x = np.arange(length, dtype=np.float32).reshape(1, length)
        (result,) = run.run(None, {"x": x, "y": np.ones((1, other), np.float32)})
        more = other - length
        np.testing.assert_array_equal(result, np.pad(x, [(0, 0), (more, more)], "edge"))


def test_ranges_that_may_be_empty() -> None:
    nodes = [
        helper.make_node("Squeeze", ["L"], ["stop"]),
        helper.make_node("Squeeze", ["forty"], ["start"]),
        helper.make_node("Squeeze", ["one"], ["by"]),
        helper.make_node("Range", ["start", "stop", "by"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["z"], to=TensorProto.FLOAT),
    ]
    holds(session(nodes, forty=40), lambda _, n: np.arange(40, n, 1, np.float32))


@pytest.mark.parametrize("step", [1, -1])
def test_a_dim_of_a_number_and_a_bound_past_its_front(step: int) -> None:
    bounds = ["ten", "L"] if step > 0 else ["L", "ten"]
    nodes = [
        helper.make_node("Slice", ["x", "none", "five", "one"], ["short"]),
        helper.make_node("Slice", ["short", *bounds, "one", "step"], ["z"]),
    ]
    run = session(nodes, none=0, five=5, ten=-10, step=step)
    for length, other in ((80, 3), (50, 5), (7, 20), (9, 4), (60, 30)):
        x = np.arange(2 * length, dtype=np.float32).reshape(2, length)
        (result,) = run.run(None, {"x": x, "y": np.ones((2, other), np.float32)})
        first, last = (-10, other) if step > 0 else (other, -10)
        np.testing.assert_array_equal(result, clipped(x[:, :5], first, last, step))
