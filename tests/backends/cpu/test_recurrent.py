"""Recurrent kernels: all cells, sizes and directions, lengths, rows shared among threads."""

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
from irc.backends.cpu.emit import emit, info_of, run_time_sizes
from irc.backends.cpu.recurrent import write
from irc.dialects.attributes import to_attribute
from irc.dialects.flow import ExternOp
from irc.dialects.recurrent import RecurrentForm
from irc.dialects.size import symbol
from irc.dialects.task import KernelOp
from irc.dialects.types import TensorType
from irc.interpret.task import run_kernel
from irc.kernels.recurrent import TARGET, recurrent_kernel
from irc.kernels.trace import Stored
from irc.kernels.view import View
from irc.ops.recurrent import loop_of
from irc.plan.template.forms import form_of, kernel_template
from irc.runtime import recurrent_sweep
from tests.runtime.test_recurrent_sweep import case, wanted

Run = Callable[..., list[Tensor]]
KINDS = ["RNN", "GRU", "GRU before", "LSTM"]


class Made:
    """A kernel, and the flat tensors that it reads."""

    def __init__(self, name: str, operands: list[Any], options: dict[str, Any]) -> None:
        kind = name.partition(" ")[0]
        packed = recurrent_sweep.packed(kind, operands, options)
        weights = {
            "w": torch.stack([one.inputs for one in packed]),
            "added": torch.stack([one.added for one in packed]),
            "r": torch.stack([one.recurrent for one in packed]),
            "inner": torch.stack([one.inner for one in packed]),
        }
        if name != "GRU":
            del weights["inner"]
        x, _, _, _, lengths, h, c, _ = operands
        self.operands: dict[str, Tensor] = {"x": x, **weights}
        self.operands |= {
            k: v for k, v in (("lengths", lengths), ("h", h), ("c", c)) if v is not None
        }
        shapes = recurrent_sweep.shapes(kind, operands, options)
        block = Block(
            arg_types=[
                TensorType.of(list(v.shape), "i32" if role == "lengths" else "f32")
                for role, v in self.operands.items()
            ]
        )
        each = len(options["activations"]) // len(packed)
        arguments = {
            "kind": loop_of(kind, resets_after=bool(options["linear_before_reset"])),
            "hidden": options["hidden"],
            "backwards": options["direction"] == "reverse",
            "activations": [recurrent_sweep.SIMPLE[n] for n in options["activations"][:each]],
            "roles": list(self.operands),
        }
        self.values: dict[SSAValue, Tensor] = dict(
            zip(block.args, self.operands.values(), strict=True)
        )
        op = ExternOp.make(
            list(block.args), [TensorType.of(list(s), "f32") for s in shapes],
            target=TARGET, arguments=json.dumps(arguments),
        )  # fmt: skip
        block.add_op(op)
        lowered = recurrent_kernel(op, self._stored)
        self.block, self.kernel, self.shapes = block, lowered.kernel, shapes
        self.kernel.verify()
        self.memory = [self._memory(self.values[v]) for v in lowered.operands]

    def _stored(self, value: SSAValue) -> Stored:
        x = self.values[value]
        size = self._memory(x).numel()
        return value, View.strided(int(x.storage_offset()), x.shape, x.stride(), size)

    def _memory(self, x: Tensor) -> Tensor:
        return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())

    def check(self, results: list[Tensor], want: list[Tensor]) -> None:
        """Compare the results of a kernel."""
        for one, shape, value in zip(results, self.shapes, want, strict=True):
            torch.testing.assert_close(one.reshape(shape).double(), value, rtol=1e-5, atol=1e-5)

    def interpreted(self) -> list[Tensor]:
        """Return what the interpreter of kernels gives."""
        outputs = [torch.full((torch.Size(s).numel(),), 9.0) for s in self.shapes]
        run_kernel(self.kernel, self.memory, outputs)
        return outputs


SIZES = [
    (1, 1, "reverse"), (7, 3, "bidirectional"), (16, 1, "forward"), (33, 9, "bidirectional"),
]  # fmt: skip


@pytest.mark.parametrize(("hidden", "batch", "direction"), SIZES)
@pytest.mark.parametrize("name", KINDS)
def test_all_sizes_and_directions(
    name: str, hidden: int, batch: int, direction: str, run: Run, features: Features | None
) -> None:
    for with_optional in (True, False) if features is None else (True,):
        operands, options = case(name, hidden, batch, direction, with_optional=with_optional)
        # Batches first, and behind something else: the kernel reads inputs where they lie.
        operands[0] = torch.randn(batch, 6, 3).transpose(0, 1)[1:]
        lowered, want = (
            Made(name, operands, options),
            wanted(name.partition(" ")[0], operands, options),
        )
        lowered.check(run(lowered.kernel, lowered.memory, features=features), want)
        if features is None and hidden < 16:
            lowered.check(lowered.interpreted(), want)


@pytest.mark.parametrize("lengths", [[5, 5, 5, 5, 5], [5, 0, 2, 1, 4], [9, -1, 5, 5, 5]])
@pytest.mark.parametrize("name", KINDS)
def test_sequences_end_at_their_lengths(name: str, lengths: list[int], run: Run) -> None:
    for direction in ("reverse", "bidirectional"):
        operands, options = case(name, 7, 5, direction)
        operands[4] = torch.tensor(lengths, dtype=torch.int32)
        lowered = Made(name, operands, options)
        operands[4] = operands[4].clamp(0, 5)
        want = wanted(name.partition(" ")[0], operands, options)
        lowered.check(run(lowered.kernel, lowered.memory), want)
        lowered.check(lowered.interpreted(), want)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_share_rows_and_directions(
    threads: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "LEAST_PRODUCTS", 0)
    for batch in (1, 11):
        operands, options = case("LSTM", 7, batch, "bidirectional")
        lowered = Made("LSTM", operands, options)
        assert info_of(emit(lowered.kernel)).parallel
        alone = run(lowered.kernel, lowered.memory, num_threads=1)
        for mine, one in zip(
            run(lowered.kernel, lowered.memory, num_threads=threads), alone, strict=True
        ):
            assert torch.equal(mine, one)
        lowered.check(alone, wanted("LSTM", operands, options))


def test_steps_are_taken_a_few_at_a_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with how many there are."""
    monkeypatch.setattr(write, "CHUNK_ROWS", 6)
    for steps in (5, 7):  # chunks of two
        operands, options = case("GRU", 7, 3, "bidirectional", steps=steps)
        lowered = Made("GRU", operands, options)
        lowered.check(run(lowered.kernel, lowered.memory), wanted("GRU", operands, options))
    sizes = [info_of(emit(Made("GRU", *case("GRU", 7, 3, "forward", steps=n)).kernel)).scratch_bytes
             for n in (50, 5000)]  # fmt: skip
    assert sizes[0] == sizes[1]


def test_batch_and_steps_may_be_known_only_at_run_time() -> None:
    def kernel(batch: int, steps: int) -> KernelOp:
        operands, options = case("LSTM", 7, batch, "bidirectional", steps=steps)
        operands[0] = torch.randn(batch, steps, 3).transpose(0, 1)
        return Made("LSTM", operands, options).kernel

    one = kernel(3, 5)
    template = kernel_template(form_of(one), [one, kernel(7, 11)])
    assert isinstance(template.kernel, KernelOp)
    b, t = symbol("B"), symbol("T")
    form = RecurrentForm(
        "LSTM", ("sigmoid", "tanh", "tanh"), False, 2, b, t, 7, 3, {}, 0, (3, 3 * t)
    )
    assert form.shape("y") == (t, 2, b, 7)
    assert form.reach()[1] == 3 * (t - 1) + 3 * t * (b - 1) + 2
    assert run_time_sizes(one) is None


def test_what_is_no_kernel_of_a_cell_is_refused() -> None:
    lowered = Made("LSTM", *case("LSTM", 7, 3, "forward"))
    for name, value, text in (
        ("kind", "Elman", "has no Elman"),
        ("activations", ("tanh",), "activations tanh"),
        ("strides", (9, 99), "touches elements"),
        ("roles", ("x", "w", "r", "added", "h", "c", "y", "last", "last_cell"), "has roles"),
    ):
        kernel = lowered.kernel.clone()
        op = kernel.body.block.first_op
        assert op is not None
        op.properties[name] = to_attribute(value)
        with pytest.raises(VerifyException, match=text):
            kernel.verify()
