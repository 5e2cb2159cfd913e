"""Kernels of an LSTM of 8 bits: sizes, directions, lengths, threads, processors without VNNI."""

# pyright: basic
from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from xdsl.ir import Block, SSAValue
from xdsl.utils.exceptions import VerifyException

from irc.backends.cpu import Features
from irc.backends.cpu.emit import emit, info_of
from irc.backends.cpu.recurrent import write
from irc.dialects.attributes import to_attribute
from irc.dialects.flow import ExternOp
from irc.dialects.types import TensorType
from irc.interpret.task import run_kernel
from irc.kernels.recurrent import TARGET, recurrent_kernel
from irc.kernels.trace import Stored
from irc.kernels.view import View
from irc.ops.recurrent import QUAD, UNIT, depth, padded
from irc.runtime.recurrent import quantized_lstm

Run = Callable[..., list[Tensor]]
DTYPES = {torch.float32: "f32", torch.int32: "i32", torch.int8: "i8"}


def case(
    hidden: int, batch: int, direction: str, *, width: int = 3, steps: int = 5, signed: bool = True,
    columns: bool = False, with_optional: bool = True,
) -> tuple[list[Any], dict[str, Any]]:  # fmt: skip
    """Return the operands of an op of 8 bits, and its options."""
    torch.manual_seed(hidden + batch + width)
    d, wide = 2 if direction == "bidirectional" else 1, 4 * hidden
    low, high, kind = (-128, 128, torch.int8) if signed else (0, 256, torch.uint8)
    scales, zeros, weights = [], [], []
    for rows in (width, hidden):
        of = (d, wide) if columns else (d,)
        weights.append(torch.randint(low, high, (d, rows, wide)).to(kind))
        zeros.append(torch.randint(low + 100, high - 100, of).to(kind))
        scales.append(0.01 * torch.rand(of) / rows**0.5 + 0.001)
    states = [torch.randn(d, batch, hidden) for _ in range(2)] if with_optional else [None, None]
    bias = torch.randn(d, 2 * wide) if with_optional else None
    x = torch.randn(steps, batch, width)
    operands = [x, *weights, bias, None, *states, None, scales[0], zeros[0], scales[1], zeros[1]]
    options = {
        "hidden": hidden, "direction": direction, "layout": 0, "clip": None, "input_forget": 0,
        "activations": ["Sigmoid", "Tanh", "Tanh"] * d, "alpha": [], "beta": [],
    }  # fmt: skip
    return operands, options


def packed(operands: list[Any], hidden: int) -> dict[str, Tensor]:
    """Pack as :mod:`irc.ops.recurrent` says, in words of its own."""
    weights: dict[str, Tensor] = {}
    for role, weight, scale, zero in (("w", *operands[1:9:7], operands[9]),
                                      ("r", *operands[2:11:8], operands[11])):  # fmt: skip
        d, rows, wide = weight.shape
        middle = 128 if weight.dtype == torch.uint8 else 0
        whole, long = padded(hidden), depth(rows)
        signed = torch.zeros(d, long, 4, whole, dtype=torch.int32)
        signed[:, :rows, :, :hidden] = (weight.int() - middle).reshape(d, rows, 4, hidden)
        columns = torch.zeros(3, d, 4, whole)
        zeros = (zero.int() - middle).reshape(d, -1).expand(d, wide)
        sums = signed.sum(1)[..., :hidden].reshape(d, wide) - rows * zeros
        for i, value in enumerate((scale.reshape(d, -1).expand(d, wide), sums, zeros)):
            columns[i, ..., :hidden] = value.reshape(d, 4, hidden)
        quads = signed.reshape(d, long // QUAD, QUAD, 4, whole // UNIT, UNIT)
        order = (0, 3, 4, 1, 5, 2) if role == "w" else (0, 4, 3, 1, 5, 2)
        weights[role] = quads.permute(order).to(torch.int8).contiguous()
        weights[f"{role}_scale"] = columns[0].clone()
        weights[f"{role}_sums"], weights[f"{role}_zeros"] = columns[1].int(), columns[2].int()
    d = operands[1].shape[0]
    weights["added"] = torch.zeros(d, 4, padded(hidden))
    if operands[3] is not None:
        both = operands[3].reshape(d, 2, 4, hidden).sum(1)
        weights["added"][..., :hidden] = both
    return weights


ORDER = ("w", "added", "r", "w_scale", "w_sums", "w_zeros", "r_scale", "r_sums", "r_zeros")


class Made:
    """A kernel, and the flat tensors that it reads."""

    def __init__(self, operands: list[Any], options: dict[str, Any]) -> None:
        weights = packed(operands, hidden := options["hidden"])
        x, lengths, h, c = (operands[i] for i in (0, 4, 5, 6))
        self.operands = {"x": x, **{role: weights[role] for role in ORDER}}
        self.operands |= {
            k: v for k, v in (("lengths", lengths), ("h", h), ("c", c)) if v is not None
        }
        block = Block(arg_types=[
            TensorType.of(list(v.shape), DTYPES[v.dtype]) for v in self.operands.values()
        ])  # fmt: skip
        d, (steps, batch) = operands[1].shape[0], x.shape[:2]
        self.shapes = [(steps, d, batch, hidden), *[(d, batch, hidden)] * 2]
        names = [name.lower() for name in options["activations"][:3]]
        arguments = {
            "kind": "LSTM", "hidden": hidden, "backwards": options["direction"] == "reverse",
            "activations": names, "roles": list(self.operands),
        }  # fmt: skip
        self.values: dict[SSAValue, Tensor] = dict(
            zip(block.args, self.operands.values(), strict=True)
        )
        op = ExternOp.make(
            list(block.args), [TensorType.of(list(s), "f32") for s in self.shapes],
            target=TARGET, arguments=json.dumps(arguments),
        )  # fmt: skip
        block.add_op(op)
        lowered = recurrent_kernel(op, self._stored)
        self.block, self.kernel = block, lowered.kernel
        self.kernel.verify()
        self.memory = [self._memory(self.values[v]) for v in lowered.operands]

    def _stored(self, value: SSAValue) -> Stored:
        x = self.values[value]
        size = self._memory(x).numel()
        return value, View.strided(int(x.storage_offset()), x.shape, x.stride(), size)

    def _memory(self, x: Tensor) -> Tensor:
        return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())

    def interpreted(self) -> list[Tensor]:
        """Return what the interpreter of kernels gives."""
        outputs = [torch.full((torch.Size(s).numel(),), 9.0) for s in self.shapes]
        run_kernel(self.kernel, self.memory, outputs)
        return outputs


def close(mine: list[Tensor], want: list[Tensor]) -> None:
    for one, value in zip(mine, want, strict=True):
        torch.testing.assert_close(one.reshape(value.shape), value, rtol=2e-5, atol=2e-5)


SIZES = [
    (1, 1, 1, "reverse"), (7, 3, 5, "bidirectional"), (16, 1, 16, "forward"),
    (33, 9, 37, "bidirectional"), (20, 2, 18, "forward"),
]  # fmt: skip


@pytest.mark.parametrize(("hidden", "batch", "width", "direction"), SIZES)
@pytest.mark.parametrize(("signed", "columns"), [(True, False), (False, False), (True, True)])
def test_all_sizes_and_directions(
    hidden: int, batch: int, width: int, direction: str, signed: bool, columns: bool, run: Run,
    features: Features | None,
) -> None:  # fmt: skip
    operands, options = case(
        hidden,
        batch,
        direction,
        width=width,
        signed=signed,
        columns=columns,
        with_optional=not columns,
    )
    # Batches first, and behind something else: the kernel reads inputs where they lie.
    operands[0] = torch.randn(batch, 6, width).transpose(0, 1)[1:]
    lowered, want = Made(operands, options), quantized_lstm(operands, options)
    assert info_of(emit(lowered.kernel, features)).template == "recurrent bytes"
    close(run(lowered.kernel, lowered.memory, features=features), want)
    if features is None and hidden < 16:
        close(lowered.interpreted(), want)


@pytest.mark.parametrize("lengths", [[5, 5, 5], [4, 0, 2], [9, -1, 5], [0, 0, 0]])
def test_sequences_end_at_their_lengths(lengths: list[int], run: Run) -> None:
    for direction in ("reverse", "bidirectional"):
        operands, options = case(7, 3, direction)
        operands[0][4] *= 9  # behind the end it has no part in the range
        operands[4] = torch.tensor(lengths, dtype=torch.int32)
        lowered = Made(operands, options)
        operands[4] = operands[4].clamp(0, 5)
        want = quantized_lstm(operands, options)
        close(run(lowered.kernel, lowered.memory), want)
        close(lowered.interpreted(), want)


def test_other_activations(run: Run) -> None:
    operands, options = case(9, 2, "forward")
    options["activations"] = ["Sigmoid", "Sigmoid", "Relu"]  # a padded unit is not zero then
    lowered = Made(operands, options)
    close(run(lowered.kernel, lowered.memory), quantized_lstm(operands, options))


def test_inputs_and_states_of_zero_have_a_range(run: Run) -> None:
    operands, options = case(9, 2, "forward", with_optional=False)
    operands[0].zero_()
    lowered = Made(operands, options)
    close(run(lowered.kernel, lowered.memory), quantized_lstm(operands, options))


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_a_row_does_not_depend_on_threads_or_on_others(
    threads: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "LEAST_PRODUCTS", 0)
    operands, options = case(7, 11, "bidirectional")
    operands[0][:, :, 0], operands[0][:, :, 1] = 4.0, -4.0  # one range for parts of the batch
    lowered = Made(operands, options)
    every = run(lowered.kernel, lowered.memory, num_threads=threads)
    for mine, alone in zip(every, run(lowered.kernel, lowered.memory), strict=True):
        assert torch.equal(mine, alone)
    few = [v if i not in (0, 5, 6) else v[:, 4:6].contiguous() for i, v in enumerate(operands)]
    part = Made(few, options)
    y = run(part.kernel, part.memory)[0].reshape(part.shapes[0])
    assert torch.equal(y, every[0].reshape(lowered.shapes[0])[:, :, 4:6])


def test_steps_are_taken_a_few_at_a_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "CHUNK_ROWS", 6)
    for steps in (5, 7):  # chunks of two
        operands, options = case(7, 3, "bidirectional", steps=steps)
        lowered = Made(operands, options)
        close(run(lowered.kernel, lowered.memory), quantized_lstm(operands, options))


def test_bytes_without_their_scales_are_refused() -> None:
    kernel = Made(*case(7, 3, "forward")).kernel
    op = kernel.body.block.first_op
    assert op is not None
    roles = ("x", "w", "added", "r", *ORDER[3:8], "h", "c", "y", "last", "last_cell")
    op.properties["roles"] = to_attribute(roles)
    with pytest.raises(VerifyException, match="has roles"):
        kernel.verify()
