"""Kernels as plain data, so that those of several plans can be compared; and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import SSAValue

from irc.dialects.attributes import to_attribute
from irc.dialects.mapping import TaskMapping, spatial
from irc.dialects.mapping_attr import MappingAttr
from irc.dialects.size import Dim
from irc.dialects.task import KernelBodyOp, KernelOp
from irc.dialects.task_sizes import bind_kernel
from irc.dialects.task_types import BufferType
from irc.kernels.attention import BLOCK_ROWS, by_rows, tile_of_rows
from irc.kernels.schedule import Schedule, schedule
from irc.plan.template.unify import DifferentError, Real

Division: TypeAlias = Literal["same", "scheduled", "blocks", "chunks", "tiles"]
"""How the mapping of a kernel follows from its sizes: it does not; as the scheduler chooses; by
blocks of the rows of attention; so many workers as there are chunks of one size; so many as there
are tiles of the first plan's size, whatever the others have: a GPU's are a matter of speed."""

SCHEDULED = {
    "rows": "rows",
    "along": "rows",
    "recurrent": "rows",
    "matmul": "matmul",
    "packed": "packed",
    "convolution": "convolution",
}
"""Templates whose mapping the scheduler chooses from the space alone, and as what."""


@dataclass(frozen=True)
class OpForm:
    """An op of a kernel's body: what it is, the numbers of its operands, its attributes."""

    name: str
    inputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    types: tuple[str, ...]


@dataclass(frozen=True)
class KernelForm:
    """A kernel without its source lines, and without its mapping."""

    name: str
    template: str
    space: tuple[Dim, ...]
    parallel: int
    num_inputs: int
    args: tuple[tuple[Dim, str], ...]
    ops: tuple[OpForm, ...]


def form_of(kernel: KernelOp) -> KernelForm:
    """Return a kernel as data."""
    number: dict[SSAValue, int] = {arg: i for i, arg in enumerate(kernel.args)}
    ops: list[OpForm] = []
    for op in kernel.body.block.ops:
        assert isinstance(op, KernelBodyOp)
        inputs = tuple(number[value] for value in op.inputs)
        types = tuple(str(value.type) for value in op.outputs)
        ops.append(OpForm(op.name, inputs, op.plain, types))
        for value in op.outputs:
            number[value] = len(number)
    kinds = [arg.type for arg in kernel.args]
    return KernelForm(
        kernel.sym_name.data,
        kernel.template.data,
        kernel.space_extents,
        kernel.num_parallel,
        kernel.num_inputs.value.data,
        tuple((kind.num_elements, kind.dtype) for kind in kinds if isinstance(kind, BufferType)),
        tuple(ops),
    )


@dataclass(frozen=True)
class KernelTemplate:
    """A kernel for every size.

    Attributes:
        kernel: with names in its sizes, for emitters that take sizes at run time.
        like: the kernel of one plan.
        division: how tasks are divided.
        symbols: what its sizes depend on.
    """

    kernel: KernelOp
    like: KernelOp
    division: Division
    symbols: tuple[str, ...]

    def at(self, values: Mapping[str, int]) -> KernelOp:
        """Return the kernel for numbers, divided as the scheduler divides that kernel."""
        if not self.symbols:
            return self.like
        kernel = bind_kernel(self.kernel, values)
        divided = _divided(self.division, kernel, self.like)
        kernel.properties["mapping"] = MappingAttr(divided.mapping)
        kernel.properties["tile"] = _tile(divided)
        return kernel


def kernel_template(
    form: KernelForm, kernels: Sequence[KernelOp], backend: str = "cpu"
) -> KernelTemplate:
    """Return what makes the kernel for other sizes.

    Args:
        form: that the kernels have in common.
        kernels: of the plans for the witnesses.
        backend: what they are compiled by.

    Raises:
        DifferentError: the mappings follow from the sizes in no way that is known.
    """
    like = kernels[0]
    named = like.clone()
    named.properties["space"] = to_attribute(form.space)
    for arg, (size, dtype) in zip(named.args, form.args, strict=True):
        arg._type = BufferType.of(size, dtype)  # pyright: ignore[reportPrivateUsage]
    for op, wanted, first in zip(named.body.block.ops, form.ops, form_of(like).ops, strict=True):
        for name, value in wanted.attrs.items():
            if value != first.attrs[name]:
                op.properties[name] = to_attribute(_named(value))
    if not named.symbols:
        return KernelTemplate(like, like, "same", ())
    named.properties["mapping"] = MappingAttr(spatial(*[1] * like.num_parallel))
    division = _division(form, kernels) if backend == "cpu" else "tiles"
    return KernelTemplate(named, like, division, named.symbols)


def _named(value: Any) -> Any:
    """Return an attribute with the sizes that floats are; a constant's type says that it is one."""
    if isinstance(value, Real):
        if value.inverse:
            raise DifferentError(("constant",), (value, "a size"))
        return value.dim
    if isinstance(value, tuple):
        return tuple(map(_named, cast("tuple[Any, ...]", value)))
    return value


def agrees(template: KernelTemplate, kernel: KernelOp, values: Mapping[str, int]) -> bool:
    """True where a kernel is divided as its template divides it for its sizes."""
    if template.division == "tiles":
        return True
    expected = template.at(values)
    return expected.task_mapping == kernel.task_mapping and expected.tile == kernel.tile


def _division(form: KernelForm, kernels: Sequence[KernelOp]) -> Division:
    choices: tuple[Division, ...] = ("same", "scheduled", "blocks", "chunks")
    for division in choices:
        if division == "scheduled" and form.template not in SCHEDULED:
            continue
        if division == "blocks" and form.template != "attention":
            continue
        if all(_same_division(division, kernel, kernels[0]) for kernel in kernels):
            return division
    raise DifferentError((form.name, "mapping"), [kernel.task_mapping for kernel in kernels[:2]])


def _same_division(division: Division, kernel: KernelOp, like: KernelOp) -> bool:
    divided = _divided(division, kernel, like)
    return divided.mapping == kernel.task_mapping and _tile(divided) == kernel.tile


def _divided(division: Division, kernel: KernelOp, like: KernelOp) -> Schedule:
    space, parallel = kernel.space_extents, kernel.num_parallel
    if division == "scheduled":
        template: Any = SCHEDULED[like.template.data]
        return schedule(template, space, parallel, "cpu")
    if division == "blocks":
        return Schedule(by_rows(space, BLOCK_ROWS), tile_of_rows(space, space[-2] * space[-1]))
    if division in ("chunks", "tiles") and len(like.task_mapping.atoms) == 2:
        _, inner = like.task_mapping.atoms
        grid = [-(-size // chunk) for size, chunk in zip(space, inner.extents, strict=False)]
        mapping = TaskMapping((*spatial(*grid).atoms, inner))
        return Schedule(mapping, like.tile_sizes)
    if division == "tiles":
        return Schedule(kernel.task_mapping, like.tile_sizes)
    return Schedule(like.task_mapping, like.tile_sizes)


def _tile(divided: Schedule) -> DictionaryAttr:
    return DictionaryAttr({k: to_attribute(v) for k, v in divided.tile.items()})
