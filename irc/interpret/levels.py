"""Run a program of any level, and say at which level it is.

Outputs are logical tensors in float64 whatever the level, so that two levels can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, SSAValue

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import tensor
from irc.dialects.placement import Split
from irc.dialects.types import PlacementAttr, TensorType, is_complex, is_smooth
from irc.errors import IrcError
from irc.plan.ranges import smallest_table
from irc.sharding.mesh import mesh_of
from irc.sharding.padding import padded_arguments

if TYPE_CHECKING:
    import torch


def level_of(module: ModuleOp) -> str:
    """Return ``flow``, ``flow+sbp``, ``spmd`` or ``task``: the lowest level that occurs."""
    names = {op.name for op in module.walk()}
    if any(name.startswith("task.") for name in names):
        return "task"
    if "forward" not in functions(module):
        raise IrcError(
            "ir-invalid",
            "the module has no function @forward, so it cannot be run",
            help="name the function that is to be run @forward, or leave --verify-each=exec out",
        )
    forward = entry(module)
    if any(tensor(arg).placement is not None for arg in forward.body.block.args):
        return "flow+sbp"
    if mesh_of(module).num_ranks > 1 or any(name.startswith("comm.") for name in names):
        return "spmd"
    return "flow"


def execute(
    module: ModuleOp, inputs: Sequence[torch.Tensor], dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    """Run the entry on logical inputs and return logical outputs.

    Args:
        module: any level above plan.
        inputs: all arguments in order, whole.
        dtype: compute in this dtype; float64 by default.
    """
    import torch

    wide = torch.float64 if dtype is None else dtype
    level = level_of(module)
    if level == "flow":
        from irc.interpret.flow import run_function

        return run_function(module, inputs, dtype=wide)
    if level == "flow+sbp":
        from irc.interpret.sharded import run_sharded

        return run_sharded(module, inputs, mesh_of(module), dtype=wide)
    from irc.interpret.spmd import run_spmd

    return run_spmd(module, inputs, mesh_of(module), dtype=wide)


def random_inputs(
    module: ModuleOp, seed: int = 0, fixed: dict[str, torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """Return all arguments of the entry, drawn from a seeded generator.

    Args:
        module: level flow: argument types are logical shapes (below, the shapes of one rank).
        seed: of the generator.
        fixed: values by argument name that are not drawn.
    """
    import torch

    from irc.runtime.dtypes import dtypes

    generator, known = torch.Generator().manual_seed(seed), functions(module)
    drawn: list[torch.Tensor] = []
    padded = padded_arguments(entry(module))
    for _, name, value in arguments(entry(module)):
        kind = logical_type(module, value)
        if fixed is not None and name in fixed:
            drawn.append(_padded(fixed[name], kind))
        elif is_smooth(kind.dtype):
            wide = torch.complex64 if is_complex(kind.dtype) else torch.float32
            sample = torch.randn(kind.static_shape(), generator=generator, dtype=wide)
            if rows := padded.get(value, 0):
                sample[rows:] = 0
            drawn.append(sample.to(dtypes()[kind.dtype]))
        elif kind.dtype == "i1":
            drawn.append(torch.rand(kind.static_shape(), generator=generator) < 0.5)
        else:
            # What indexes no table is drawn as a flag: 0 or 1.
            high = smallest_table(value, known) or 2
            whole = torch.randint(0, high, kind.static_shape(), generator=generator)
            drawn.append(whole.to(dtypes()[kind.dtype]))
    return drawn


def padded_inputs(module: ModuleOp, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the arguments of a program with the padding with which it takes some of them."""
    padded = padded_arguments(entry(module))
    return [
        _padded(whole, logical_type(module, value)) if value in padded else whole
        for whole, value in zip(inputs, entry(module).body.block.args, strict=True)
    ]


def _padded(value: torch.Tensor, kind: TensorType) -> torch.Tensor:
    """Return a value with rows of zeros behind its own, where its argument has more."""
    if not kind.ndim or len(value) >= (rows := kind.static_shape()[0]):
        return value
    longer = value.new_zeros((rows, *value.shape[1:]))
    longer[: len(value)] = value
    return longer


def logical_type(module: ModuleOp, argument: SSAValue) -> TensorType:
    """Return the whole tensor's type of an argument, also where the level states one rank's."""
    kind, func = tensor(argument), entry(module)
    if not func.arg_attrs or not isinstance(argument, BlockArgument):
        return kind
    placed = func.arg_attrs.data[argument.index].data.get("sbp")
    if not isinstance(placed, PlacementAttr):
        return kind
    mesh, shape = mesh_of(module), list(kind.static_shape())
    for axis, how in placed.data.axes:
        if isinstance(how, Split):
            shape[how.dim] *= mesh.size(axis)
    return TensorType.of(shape, kind.dtype)


def difference(now: torch.Tensor, was: torch.Tensor) -> float:
    """Return the largest error relative to the largest magnitude of ``was``; NaN must meet NaN.

    >>> import torch
    >>> difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    0.5
    """
    import torch

    if now.shape != was.shape:
        return float("inf")
    if now.numel() == 0:
        return 0.0
    a, b = now.to(torch.float64), was.to(torch.float64)
    apart, scale = float((a - b).abs_().max()), float(b.abs().max())
    if isfinite(apart) and isfinite(scale):
        return apart / (scale if scale > 0 else 1.0)
    odd = ~torch.isfinite(b)
    if not torch.equal(torch.nan_to_num(a[odd], 1e300), torch.nan_to_num(b[odd], 1e300)):
        return float("inf")
    a, b = a[~odd], b[~odd]
    if not bool(torch.isfinite(a).all()):
        return float("inf")
    if a.numel() == 0:
        return 0.0
    scale = float(b.abs().max())
    return float((a - b).abs().max()) / (scale if scale > 0 else 1.0)
