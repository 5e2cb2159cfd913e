"""Readable names and identity of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from xdsl.ir import Attribute, SSAValue

from irc.dialects.packed_products import EXPECTED
from irc.dialects.task import KernelBodyOp, KernelOp
from irc.kernels.nest import Nest

MAX_WORDS = 3
SEARCH = ("eq", "is_nan", "logical_or", "where")
"""What an arg-reduction consists of beside its reductions."""

WITHIN = ("ge", "lt", "logical_and", "where")
"""What says whether an index of a grouped product names a matrix."""


def hint(nest: Nest) -> str:
    """Say in a word or a few what a kernel does.

    A matmul is named with what follows it (``matmul_add_gelu``), a chain with reductions by what
    it is (``softmax``, ``norm``) or what it reduces by, another by its functions.
    """
    functions = [str(n.attrs["fn"]) for n in nest.nodes if n.kind in ("pointwise", "reduce")]
    reductions = [str(n.attrs["fn"]) for n in nest.nodes if n.kind == "reduce"]
    gathers = any(node.kind == "load" and node.operands for node in nest.nodes)
    contract = nest.contract
    if nest.template == "matmul":
        windows = contract is not None and contract.attrs.get("windows")
        if contract is not None and contract.attrs.get("grouped"):
            own = [f for f in functions if f not in WITHIN]
            return "_".join(["grouped_matmul", *_distinct(own)][: MAX_WORDS + 1])
        words = ["convolution" if windows else "matmul", *_distinct(functions)]
    elif reductions and "rsqrt" in functions:
        words = ["norm"]
    elif reductions == ["max", "sum"] and "exp" in functions:
        words = ["softmax"]
    elif searches := [f"arg_{node.attrs['finds']}" for node in nest.nodes if "finds" in node.attrs]:
        others = [fn for fn in functions if fn not in (*reductions, *SEARCH)]
        words = [*_distinct(others)[:2], searches[0]]
    elif reductions:
        words = [*_distinct([f for f in functions if f not in reductions])[:2]]
        words += [f"reduce_{fn}" for fn in _distinct(reductions)]
    elif gathers:
        words = ["take", *_distinct(functions)]
    else:
        words = _distinct(functions) or (["copy"] if nest.accesses else ["fill"])
    return "_".join(words[: MAX_WORDS + 1])


def _distinct(words: Sequence[str]) -> list[str]:
    return [word for word in dict.fromkeys(words) if word not in ("cast", "copy")][:MAX_WORDS]


def identity(kernel: KernelOp) -> str:
    """Return a text that equal kernels share: without names and source lines."""
    number: dict[SSAValue, int] = {arg: i for i, arg in enumerate(kernel.args)}
    lengths = f" {kernel.part_lengths}" if kernel.part_lengths else ""
    expected = f" {kernel.attributes[EXPECTED]}" if EXPECTED in kernel.attributes else ""
    lines = [
        f"{kernel.template.data} {kernel.space_extents} {kernel.num_parallel} {kernel.num_inputs}"
        f"{lengths}{expected}",
        f"{kernel.task_mapping} {sorted(kernel.tile_sizes.items())}",
        ", ".join(_text(arg.type) for arg in kernel.args),
    ]
    for op in kernel.body.block.ops:
        assert isinstance(op, KernelBodyOp)
        operands = [number[value] for value in op.inputs]
        lines.append(f"{op.name} {operands} {sorted(op.plain.items())}")
        for value in op.outputs:
            number[value] = len(number)
            lines.append(_text(value.type))
    return "\n".join(lines)


@lru_cache(maxsize=4096)
def _text(kind: Attribute) -> str:
    """Return the text of a type: kernels have few different ones."""
    return str(kind)
