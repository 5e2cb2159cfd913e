"""Attention kernels built from flow ops over chosen memory, and what torch gives in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from xdsl.ir import Block, SSAValue

from irc.backends.cpu.features import Features
from irc.dialects.flow import ExternOp, FlowOp
from irc.dialects.task import KernelOp
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.interpret.task import run_kernel
from irc.kernels.attention import attention_kernel
from irc.kernels.trace import GroupError, Stored
from irc.kernels.view import View
from irc.ops.attention_ops import Form
from irc.runtime.attention import attention as reference
from tests.backends.cpu.conftest import TORCH, execute


@dataclass(frozen=True)
class Case:
    """One attention: sizes, mask, memory.

    Attributes:
        batch, heads, groups, rows, keys, depth, width: sizes.
        mask: shape of a mask, from the right; None for none.
        mask_dtype: i1, or of an additive mask.
        start: the first row less the first key.
        before: goes on from a result over other keys.
        turned: q, k, v lie as [batch, rows, heads, features].
        stored: y is stored so.
    """

    batch: int = 1
    heads: int = 2
    groups: int = 2
    rows: int = 5
    keys: int = 7
    depth: int = 4
    width: int = 4
    causal: bool = False
    mask: tuple[int, ...] | None = None
    mask_dtype: str = "i1"
    start: int | None = None
    before: bool = False
    sums: bool = False
    dtype: str = "f32"
    scale: float = 0.37
    turned: bool = True
    stored: bool = True

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The operands, as the op names their dims."""
        torch.manual_seed(hash((self.rows, self.keys, self.depth)) % 1000)
        b, h, g, s, t, d, e = (
            self.batch, self.heads, self.groups, self.rows, self.keys, self.depth, self.width,
        )  # fmt: skip
        dtype = TORCH[self.dtype]
        operands = {"q": self._laid((b, h, s, d)), "k": self._laid((b, g, t, d))}
        operands["v"] = self._laid((b, g, t, e))
        if self.mask is not None:
            whole = torch.rand(self.mask)
            operands["mask"] = (
                whole > 0.4
                if self.mask_dtype == "i1"
                else (whole * 4 - 2).to(TORCH[self.mask_dtype])
            )
            if self.mask_dtype != "i1":
                # What torch writes for a hidden key, in all of a row: the mean of the values.
                operands["mask"][-1] = torch.finfo(operands["mask"].dtype).min
        if self.start is not None:
            operands["start"] = torch.tensor(self.start)
        if self.before:
            operands["y0"] = torch.randn(b, h, s, e).to(dtype)
            operands["sums0"] = torch.randn(b, h, s)
            operands["sums0"][..., 0] = -torch.inf
            operands["y0"][..., 0, :] = 0
        return operands

    def _laid(self, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = torch.randn(shape).to(TORCH[self.dtype])
        return tensor.transpose(1, 2).contiguous().transpose(1, 2) if self.turned else tensor

    @property
    def form(self) -> Form:
        """The op's attributes beside its first operands."""
        places = {name: i for i, name in enumerate(self.tensors)}
        before = (places["y0"], places["sums0"]) if self.before else ()
        return Form(
            self.causal, self.scale, places.get("mask"), places.get("start"), before, self.sums
        )

    def op(self) -> tuple[FlowOp, Block]:
        """Return the op, and the block whose arguments are its operands."""
        names = {v: k for k, v in TORCH.items()}
        kinds = [TensorType.of(tuple(t.shape), names[t.dtype]) for t in self.tensors.values()]
        block = Block(arg_types=kinds)
        y = TensorType.of((self.batch, self.heads, self.rows, self.width), self.dtype)
        results = [y, TensorType.of((self.batch, self.heads, self.rows), "f32")]
        form = self.form
        if form.start is None and not form.before and not form.with_sums:
            op = AttentionOp.make(
                list(block.args), results[:1], is_causal=self.causal, scale=self.scale
            )
        else:
            outputs = results if self.sums else results[:1]
            op = ExternOp.make(list(block.args), outputs, **form.forward())
        block.add_op(op)
        return op, block

    def kernel(self) -> tuple[KernelOp, list[torch.Tensor]]:
        """Return the kernel and the flat memory of its inputs; what it asks for is copied."""
        op, block = self.op()
        memory: dict[SSAValue, tuple[torch.Tensor, View]] = {}
        for arg, tensor in zip(block.args, self.tensors.values(), strict=True):
            dense = _memory(tensor)
            memory[arg] = (dense, _view(tensor, dense.numel()))

        def source(value: SSAValue) -> Stored:
            return value, memory[value][1]

        turned = {op.outputs[0]: (0, 2, 1, 3)} if self.stored else {}
        for _ in range(3):
            try:
                lowered = attention_kernel(op, source, turned)
                break
            except GroupError as error:
                for value, order in error.copies:
                    tensor = self.tensors[list(self.tensors)[list(block.args).index(value)]]
                    order = order or tuple(range(tensor.ndim))
                    inverse = tuple(order.index(d) for d in range(tensor.ndim))
                    copied = tensor.permute(order).contiguous().permute(inverse)
                    memory[value] = (_memory(copied), _view(copied, copied.numel()))
        lowered.kernel.verify()
        return lowered.kernel, [memory[value][0] for value in lowered.operands]

    def shown(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Give flat outputs their shapes."""
        b, h, s, e = self.batch, self.heads, self.rows, self.width
        y = outputs[0].reshape(b, s, h, e).transpose(1, 2) if self.stored else outputs[0]
        return [y.reshape(b, h, s, e), *(x.reshape(b, h, s) for x in outputs[1:])]

    def expected(self) -> list[torch.Tensor]:
        """Return y and the log-sums in float64."""
        wide = {k: v.double() if v.is_floating_point() else v for k, v in self.tensors.items()}
        names = ("q", "k", "v", "mask", "start", "y0", "sums0")
        return reference(*[wide.get(name) for name in names], self.causal, self.scale, self.sums)  # type: ignore[arg-type]

    def interpreted(self) -> list[torch.Tensor]:
        """Run by the interpreter in float64."""
        kernel, inputs = self.kernel()
        wide = [t.double() if t.is_floating_point() else t for t in inputs]
        outputs = [
            torch.zeros(arg.type.num_elements, dtype=torch.float64)  # type: ignore[attr-defined]
            for arg in kernel.args[len(inputs) :]
        ]
        run_kernel(kernel, wide, outputs, torch.float64)
        return self.shown(outputs)

    def executed(
        self, num_threads: int = 1, features: Features | None = None
    ) -> list[torch.Tensor]:
        """Run by the backend."""
        kernel, inputs = self.kernel()
        return self.shown(execute(kernel, inputs, num_threads, features))


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The flat memory of a tensor that covers its storage."""
    return tensor.as_strided((tensor.numel(),), (1,), 0)


def _view(tensor: torch.Tensor, size: int) -> View:
    return View.strided(0, tuple(tensor.shape), tensor.stride(), size)
