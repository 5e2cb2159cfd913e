"""Kernels of attention's gradients written by hand, and what they mean in float64."""

from __future__ import annotations

import torch
from xdsl.dialects.builtin import BoolAttr, FloatAttr, f64
from xdsl.ir import Block

from irc.dialects.attention_backward import BEFORE, OUTPUTS, KernelAttentionBackwardOp
from irc.dialects.mapping import spatial
from irc.dialects.task import KernelOp
from irc.dialects.task_types import BufferType
from irc.interpret.task import run_kernel
from irc.runtime.dtypes import dtypes
from tests.backends.attention_kernels import Attend, inputs_of, kernel_of, meaning, moving

Role = tuple[str, str, int, tuple[int, ...], int]
SIDES = (("dk", "dv"), ("dq",))
"""The gradients that one kernel gives on a GPU."""


def backward_of(a: Attend, outputs: tuple[str, ...]) -> KernelOp:
    """Build the kernel; all roles lie as :func:`tests.backends.attention_kernels.kernel_of` has."""
    heads = a.groups * a.repeats
    space = (a.batch, a.groups, a.repeats, a.rows, 1, a.keys)

    def rows_of(features: int, count: int, length: int) -> tuple[int, int, int, int]:
        width = count * features
        return a.batch * length * width, length * width, width, features

    def by_row(role: str, features: int, dtype: str) -> Role:
        size, b, s, h = rows_of(features, heads, a.rows)
        return role, dtype, size, (b, a.repeats * h, h, s, 0, 0), 1

    def by_key(role: str, features: int, dtype: str) -> Role:
        size, b, s, h = rows_of(features, a.groups, a.keys)
        return role, dtype, size, (b, h, 0, 0, a.keys * s, s), 1

    per_row = (heads * a.rows, a.repeats * a.rows, a.rows, 1, 0, 0)
    roles = [by_row("g", a.width, a.dtype), by_row("q", a.depth, a.dtype)]
    roles += [by_key("k", a.depth, a.dtype), by_key("v", a.width, a.dtype)]
    roles += [(r, "f32", a.batch * heads * a.rows, per_row, 0) for r in ("sums", "delta")]
    if a.mask == "bool_keys":
        roles.append(("mask", "i1", a.batch * a.keys, (a.keys, 0, 0, 0, a.keys, 1), 0))
    elif a.mask:
        kind = "i1" if a.mask == "bool" else a.dtype
        roles.append(("mask", kind, a.rows * a.keys, (0, 0, 0, a.keys, a.keys, 1), 0))
    if a.start:
        roles.append(("start", "i64", 1, (0,) * 6, 0))
    gradients = {"dq": by_row("dq", a.depth, a.dtype), "dk": by_key("dk", a.depth, a.dtype)}
    gradients["dv"] = by_key("dv", a.width, a.dtype)
    if a.goes_on:
        roles += [(BEFORE[role], *gradients[role][1:]) for role in OUTPUTS if role in outputs]
    return _kernel(a, space, roles, [gradients[role] for role in OUTPUTS if role in outputs])


def _kernel(a: Attend, space: tuple[int, ...], roles: list[Role], outputs: list[Role]) -> KernelOp:
    every = [*roles, *outputs]
    block = Block(arg_types=[BufferType.of(size, dtype) for _, dtype, size, _, _ in every])
    op = KernelAttentionBackwardOp.make(
        list(block.args), [],
        roles=tuple(role for role, *_ in every),
        offsets=tuple(0 for _ in every),
        strides=tuple(s for _, _, _, strides, f in every for s in (*moving(space, strides), f)),
        keys=a.keys, features=(a.depth, a.width),
    )  # fmt: skip
    op.properties["scale"] = FloatAttr(a.scale, f64)
    op.properties["causal"] = BoolAttr.from_bool(a.causal)
    block.add_op(op)
    kernel = KernelOp.make(
        f"{a.name}_{'_'.join(role for role, *_ in outputs)}", block, template="attention_backward",
        space=space, parallel=2, num_inputs=len(roles), mapping=spatial(*space[:2]),
        sources=["n7"],
    )  # fmt: skip
    kernel.verify()
    return kernel


def backward_inputs(a: Attend, kernel: KernelOp, seed: int = 0) -> list[torch.Tensor]:
    """Return random inputs; log-sums and deltas are those of the forward pass."""
    generator = torch.Generator().manual_seed(seed)
    plain = Attend(**{**a.__dict__, "goes_on": False, "sums": True, "parts": 1})
    forward = kernel_of(plain)
    forward_inputs = inputs_of(plain, forward, seed)
    y, sums = meaning(forward, forward_inputs)
    roles = dict(zip(_roles(forward), forward_inputs, strict=False))
    (op,) = kernel.body.block.ops
    assert isinstance(op, KernelAttentionBackwardOp)
    inputs: list[torch.Tensor] = []
    for role, place in op.form.places.items():
        if role in OUTPUTS:
            continue
        if role in roles:
            inputs.append(roles[role])
        elif role == "sums":
            inputs.append(sums.float())
        elif role == "delta":
            inputs.append(_delta(a, inputs[0], y))
        else:
            values = torch.randn(place.size, generator=generator, dtype=torch.float64)
            inputs.append(values.to(dtypes()[place.dtype]))
    return inputs


def _roles(kernel: KernelOp) -> list[str]:
    (op,) = kernel.body.block.ops
    return list(op.form.places)


def _delta(a: Attend, g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``sum(g * y)`` of each row; both lie as [B, S, heads, features]."""
    shape = (a.batch, a.rows, a.groups * a.repeats, a.width)
    return (g.double() * y).view(shape).sum(-1).transpose(1, 2).float().flatten()


def backward_meaning(kernel: KernelOp, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients in float64, by the interpreter of the op."""
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    outputs = [
        torch.full((arg.type.num_elements,), torch.nan, dtype=torch.float64)
        for arg in kernel.args[len(inputs) :]
    ]
    run_kernel(kernel, wide, outputs, torch.float64)
    return outputs


def backward_cases() -> dict[str, Attend]:
    """Odd sizes, masks, groups, rows that see nothing, more keys than rows and fewer."""
    cases = [
        Attend(name="plain"),
        Attend(causal=True, rows=70, keys=70, name="causal"),
        Attend(causal=True, start=True, rows=35, keys=90, repeats=3, name="cached"),
        Attend(causal=True, rows=90, keys=35, repeats=2, name="fewer_keys"),
        Attend(causal=True, rows=20, keys=150, name="unseen_keys"),
        Attend(mask="bool", depth=20, width=12, name="masked"),
        Attend(mask="bool_keys", causal=True, rows=53, repeats=2, name="padded"),
        Attend(mask="float", dtype="f16", name="biased_f16"),
        Attend(causal=True, dtype="f16", rows=129, keys=129, depth=64, width=64, batch=1,
               groups=1, name="long_f16"),
        Attend(goes_on=True, mask="bool", causal=True, name="ring_masked"),
        Attend(rows=1, keys=1, groups=1, batch=1, name="single"),
        Attend(rows=64, keys=64, groups=1, batch=1, depth=32, width=32, name="whole_tiles"),
        Attend(dtype="bf16", causal=True, rows=40, keys=40, name="causal_bf16"),
    ]  # fmt: skip
    return {a.name: a for a in cases}
