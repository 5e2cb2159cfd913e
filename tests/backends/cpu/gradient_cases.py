"""Cases of attention's derivative: from operands through its kernels, and what torch says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from irc.backends.cpu.features import Features
from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.flow import ExternOp, TransposeOp
from irc.dialects.launches import CopyOp, LaunchOp, ViewOp
from irc.dialects.task import KernelOp
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.interpret.task import run_memory
from irc.ops.attention_ops import Form
from irc.passes.fuse import FusePass
from irc.passes.map_tasks import MapTasksPass
from irc.runtime.attention import attention
from tests.backends.cpu.conftest import TORCH, execute, expected

PERM = (0, 2, 1, 3)
Run: TypeAlias = Callable[[KernelOp, list[torch.Tensor]], list[torch.Tensor]]
NAMES = {dtype: name for name, dtype in TORCH.items()}


@dataclass(frozen=True)
class Case:
    """A derivative of attention.

    Attributes:
        lead: batch dims.
        mask: shape of a mask, from the right; None for none.
        mask_dtype: i1, or of an additive mask.
        start: the first row less the first key.
        before: the gradients are added to others.
        turned: operands and results lie as [batch, rows, heads, features].
    """

    lead: tuple[int, ...] = (1,)
    heads: int = 8
    groups: int = 8
    rows: int = 5
    keys: int = 7
    depth: int = 4
    width: int = 4
    causal: bool = False
    mask: tuple[int, ...] | None = None
    mask_dtype: str = "i1"
    start: int | None = None
    before: bool = False
    dtype: str = "f32"
    scale: float = 0.37
    turned: bool = True
    seed: int = field(default=0, compare=False)

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The operands; y and the log-sums are those of float64, rounded."""
        generator = torch.Generator().manual_seed(self.seed)
        dtype, lead = TORCH[self.dtype], self.lead
        heads, groups = ((self.heads,), (self.groups,)) if self.heads else ((), ())

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        operands = {
            "g": random(*lead, *heads, self.rows, self.width),
            "q": random(*lead, *heads, self.rows, self.depth),
            "k": random(*lead, *groups, self.keys, self.depth),
            "v": random(*lead, *groups, self.keys, self.width),
        }
        more: dict[str, torch.Tensor] = {}
        if self.mask is not None:
            whole = torch.rand(self.mask, generator=generator)
            is_bool = self.mask_dtype == "i1"
            more["mask"] = whole > 0.4 if is_bool else (whole * 4 - 2).to(TORCH[self.mask_dtype])
            if is_bool and self.mask[-2] > 1:
                more["mask"][..., 0, :] = False  # a row that sees nothing
        if self.start is not None:
            more["start"] = torch.tensor(self.start)
        if self.before:
            more |= {f"d{name}0": random(*operands[name].shape) for name in "qkv"}
        wide = _wide({**operands, **more})
        y, sums = attention(
            wide["q"], wide["k"], wide["v"], wide.get("mask"), wide.get("start"), None, None,
            self.causal, self.scale, True,
        )  # fmt: skip
        return {**operands, "y": y.to(dtype), "sums": sums.float(), **more}

    def expected(self) -> list[torch.Tensor]:
        """Return dq, dk, dv in float64 by torch's autograd of the formula."""
        wide = _wide(self.tensors)
        q, k, v = (wide[name].requires_grad_() for name in "qkv")
        y = formula(q, k, v, wide.get("mask"), self.causal, int(wide.get("start", 0)), self.scale)
        gradients = torch.autograd.grad(y, (q, k, v), wide["g"])
        return [d + wide.get(f"d{name}0", 0) for name, d in zip("qkv", gradients, strict=True)]

    def program(self) -> ModuleOp:
        """Return the derivative as launches of kernels."""
        tensors = self.tensors
        shapes = [
            x.permute(PERM).shape if n in self._turned else x.shape for n, x in tensors.items()
        ]
        kinds = [
            TensorType.of(tuple(shape), NAMES[x.dtype])
            for shape, x in zip(shapes, tensors.values(), strict=True)
        ]
        block = Block(arg_types=kinds)
        b, places = FlowBuilder(block), {name: i for i, name in enumerate(tensors)}
        before = tuple(places[f"d{name}0"] for name in "qkv") if self.before else ()
        form = Form(self.causal, self.scale, places.get("mask"), places.get("start"), before)
        operands: list[SSAValue] = [
            b.op(TransposeOp, [arg], perm=PERM) if name in self._turned else arg
            for arg, name in zip(block.args, tensors, strict=True)
        ]
        gradient_kinds = [TensorType.of(tuple(tensors[name].shape), self.dtype) for name in "qkv"]
        results = b.ops(ExternOp, operands, results=gradient_kinds, **form.backward())
        if self._turned:
            results = [b.op(TransposeOp, [value], perm=PERM) for value in results]
        module = ModuleOp([finish_function("forward", block, results)])
        for each in (FusePass(), MapTasksPass()):
            each.apply(context(), module)
            module.verify()
        return module

    @property
    def _turned(self) -> tuple[str, ...]:
        return ("g", "q", "k", "v", "y") if self.turned and self.tensors["q"].ndim == 4 else ()

    def _laid(self) -> dict[str, torch.Tensor]:
        """The operands as they lie in memory."""
        return {
            name: x.permute(PERM).contiguous() if name in self._turned else x
            for name, x in self.tensors.items()
        }

    def executed(
        self, num_threads: int = 1, features: Features | None = None
    ) -> list[torch.Tensor]:
        """Run the kernels by the backend."""
        return self._run(lambda kernel, inputs: execute(kernel, inputs, num_threads, features))

    def interpreted(self) -> list[torch.Tensor]:
        """Run the kernels by the interpreter in float64."""
        return self._run(expected)

    def _run(self, run: Run) -> list[torch.Tensor]:
        module = self.program()
        kernels = {op.sym_name.data: op for op in module.walk() if isinstance(op, KernelOp)}
        (func,) = (op for op in module.body.block.ops if op.name == "func.func")
        inputs = list(self._laid().values())
        block = func.regions[0].block
        values: dict[SSAValue, torch.Tensor] = dict(zip(block.args, inputs, strict=True))
        for op in block.ops:
            if isinstance(op, ViewOp | CopyOp):
                values[op.outputs[0]] = run_memory(op, values[op.inputs[0]])
            elif isinstance(op, LaunchOp):
                flat = [values[v].contiguous().reshape(-1) for v in op.inputs]
                results = run(kernels[op.kernel_name], flat)
                for value, tensor in zip(op.outputs, results, strict=True):
                    kind = value.type
                    assert isinstance(kind, TensorType)
                    values[value] = tensor.reshape(kind.static_shape())
        results = [values[v] for v in block.last_op.operands]  # type: ignore[union-attr]
        return [x.permute(PERM) for x in results] if self._turned else results


def kernels_of(module: ModuleOp) -> list[KernelOp]:
    """Return the kernels of gradients."""
    kernels = [op for op in module.walk() if isinstance(op, KernelOp)]
    return [op for op in kernels if op.template.data == "attention_backward"]


def formula(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    start: int,
    scale: float,
) -> torch.Tensor:
    """Attention as its definition has it; rows that see nothing are zeros."""
    if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if causal:
        seen = torch.arange(q.shape[-2])[:, None] + start >= torch.arange(k.shape[-2])
    if mask is not None and mask.dtype == torch.bool:
        seen = seen & mask
    elif mask is not None:
        scores = scores + mask
    scores = scores.masked_fill(~seen, -torch.inf)
    empty = ~seen.expand(scores.shape).any(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0) @ v


def _wide(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: x.double() if x.is_floating_point() else x for n, x in tensors.items()}


def error(gradients: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """Return the largest error, as a part of the largest of each gradient, 1 at least."""
    pairs = zip(gradients, wanted, strict=True)
    return max(float((a.double() - b).abs().max() / b.abs().max().clamp(min=1.0)) for a, b in pairs)
