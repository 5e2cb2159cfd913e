"""Projections whose result is cut into parts, as queries, keys and values are: one for each part.

Ranks that divide the rows of ``qkv`` among them have contiguous ones: with four ranks the first has
three quarters of all queries and nothing else, and to divide heads everything moves. Where queries,
keys and values have weights of their own, ranks have the heads of each that they compute with.

The parts of a weight are its *slices* (:mod:`irc.training.slices`), each a parameter with a name of
its own. Whoever loads or saves the model knows the whole one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from irc.dialects.builder import FlowBuilder, arguments, entry, functions
from irc.dialects.flow import (
    ContractOp,
    FlowOp,
    PointwiseOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    carry,
    id_of,
    loc_of,
    tensor,
)
from irc.dialects.types import TensorType
from irc.ops.infer import parse_spec
from irc.training.entry import globs, matches
from irc.training.head import weight_chain
from irc.training.recipe import Recipe
from irc.training.slices import Sliced, slice_name

WHOLE, ALONG = "whole", "along"
"""Attributes of a parameter that is a slice: of which one, and along which dim it is cut."""

Bounds = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Weight:
    """A weight of a projection.

    Attributes:
        argument: of the function.
        chain: casts and transposes between it and what is computed, last first.
        dim: of the argument, along which results are parts.
    """

    argument: BlockArgument
    chain: tuple[FlowOp, ...]
    dim: int


@dataclass(frozen=True)
class Projection:
    """A product with a weight, and how its result is cut.

    Attributes:
        contract: the product, by a weight that is its second operand.
        weight: the weight.
        add: the sum with a bias, of which the product is the first operand; None for none.
        bias: the bias.
        way: reshapes and transposes up to the values that slices are taken of.
        dims: of the dim that is cut, before and after each of them.
        leaves: the slices, each with what of the weight's rows it is of.
    """

    contract: ContractOp
    weight: Weight
    add: PointwiseOp | None
    bias: Weight | None
    way: tuple[FlowOp, ...]
    dims: tuple[int, ...]
    leaves: tuple[tuple[SliceOp, tuple[int, int]], ...]

    @property
    def bounds(self) -> Bounds:
        """Where the parts begin and end, in order."""
        return tuple(sorted({bounds for _, bounds in self.leaves}))


def split_projections(module: ModuleOp) -> None:
    """Give each part of a projection's result a product of its own, in place.

    Args:
        module: level flow, before it is differentiated.
    """
    func = entry(module)
    for name, body in functions(module).items():
        calls = [op for op in module.walk() if isinstance(op, CallOp)]
        own = [call for call in calls if call.callee.string_value() == name]
        if body is not func and any(call.parent is not func.body.block for call in own):
            continue
        for each in list(_projections(body)):
            weights = [each.weight, *([each.bias] if each.bias else [])]
            if all(_is_free(func, body, own, weight) for weight in weights):
                _split(func, body, own, each)


def slices_in(func: FuncOp) -> dict[str, Sliced]:
    """Return by name the weights that a program has in slices.

    Args:
        func: the entry.
    """
    found: dict[str, list[tuple[int, int, str, int]]] = {}
    for (_, name, _), attrs in zip(
        arguments(func), func.arg_attrs.data if func.arg_attrs else (), strict=False
    ):
        whole, along = attrs.data.get(WHOLE), attrs.data.get(ALONG)
        if isinstance(whole, StringAttr) and isinstance(along, IntegerAttr):
            start, _, stop = name.rpartition(":")[2].partition("-")
            own = int(start), int(stop), name, along.value.data
            found.setdefault(whole.data, []).append(own)
    sliced: dict[str, Sliced] = {}
    for whole, parts in found.items():
        starts, stops, names, dims = zip(*sorted(parts), strict=True)
        sliced[whole] = Sliced(names, dims[0], starts, stops)
    return sliced


def in_slices(recipe: Recipe, slices: Mapping[str, Sliced]) -> Recipe:
    """Return a recipe in which globs of parameters mean their slices, too.

    >>> own = {"a.weight": Sliced(("a.weight:0-2", "a.weight:2-3"), 0, (0, 2), (2, 3))}
    >>> in_slices(Recipe("adamw", {}, no_decay="*.bias, a.*t"), own).no_decay
    '*.bias, a.*t, a.*t:*'
    """
    if not slices:
        return recipe
    groups = (replace(each, params=_globs_of_slices(each.params, slices)) for each in recipe.groups)
    no_decay = _globs_of_slices(recipe.no_decay, slices)
    return replace(recipe, no_decay=no_decay, groups=tuple(groups))


def _globs_of_slices(text: str, slices: Mapping[str, Sliced]) -> str:
    own = globs(text)
    more = [f"{each}:*" for each in own if any(matches(name, [each]) for name in slices)]
    return ", ".join([*own, *more])


def _projections(func: FuncOp) -> Iterator[Projection]:
    for op in func.body.block.ops:
        if isinstance(op, ContractOp) and len(op.inputs) == 2:
            found = _projection(op)
            if found is not None:
                yield found


def _projection(op: ContractOp) -> Projection | None:
    """Return a product whose result is cut in parts along the last letter of its weight."""
    (left, right), result = parse_spec(op.plain["spec"])
    letter = result[-1] if result else ""
    if len(right) != 2 or letter not in right or letter in left:
        return None
    weight = _weight(op.inputs[1], right.index(letter))
    if weight is None:
        return None
    value, add, bias = op.outputs[0], None, None
    if isinstance(user := _only_reader(value), PointwiseOp) and user.plain["fn"] == "add":
        first, second = user.inputs
        width = tensor(value).shape[-1:]
        is_bias = first is value and tensor(second).shape == width
        if not is_bias or user.outputs[0].type != value.type:
            return None
        if (bias := _weight(second, 0)) is None:
            return None
        add, value = user, user.outputs[0]
    return _cut(op, weight, add, bias, value)


def _cut(
    op: ContractOp,
    weight: Weight,
    add: PointwiseOp | None,
    bias: Weight | None,
    value: SSAValue,
) -> Projection | None:
    way: list[FlowOp] = []
    dim, unit = tensor(value).ndim - 1, 1
    dims = [dim]
    while isinstance(step := _only_reader(value), ReshapeOp | TransposeOp):
        moved = _moved(step, dim)
        if moved is None:
            return None
        dim, factor = moved
        unit *= factor
        way.append(step)
        dims.append(dim)
        value = step.outputs[0]
    leaves: list[tuple[SliceOp, tuple[int, int]]] = []
    for use in value.uses:
        bounds = _bounds(use.operation, dim)
        if bounds is None or not isinstance(use.operation, SliceOp):
            return None
        leaves.append((use.operation, (bounds[0] * unit, bounds[1] * unit)))
    width = tensor(value).static_shape()[dim] * unit
    own = Projection(op, weight, add, bias, tuple(way), tuple(dims), tuple(leaves))
    edges = [0, *(stop for _, stop in own.bounds)]
    is_whole = [start for start, _ in own.bounds] == edges[:-1] and edges[-1] == width
    return own if is_whole and len(own.bounds) > 1 else None


def _weight(value: SSAValue, dim: int) -> Weight | None:
    """Return an argument that a value is by casts and transposes, which nothing else reads."""
    argument, chain = weight_chain(value)
    if not isinstance(argument, BlockArgument):
        return None
    if any(_only_reader(each) is None for each in (argument, *(op.outputs[0] for op in chain))):
        return None
    for op in chain:
        dim = op.plain["perm"][dim] if isinstance(op, TransposeOp) else dim
    return Weight(argument, chain, dim)


def _only_reader(value: SSAValue) -> Operation | None:
    uses = list(value.uses)
    return uses[0].operation if len(uses) == 1 else None


def _moved(op: FlowOp, dim: int) -> tuple[int, int] | None:
    """Return where a dim is after an op, and how many of its elements are one then.

    A reshape keeps it as it is, or divides it into a number of pieces, which is the dim then.
    """
    if isinstance(op, TransposeOp):
        return list(op.plain["perm"]).index(dim), 1
    before, after = (tensor(value).static_shape() for value in (op.inputs[0], op.outputs[0]))
    if "pin" in op.properties:
        return None
    outer = prod(before[:dim])
    for place, size in enumerate(after):
        if prod(after[:place]) == outer and size > 1 and before[dim] % size == 0:
            return place, before[dim] // size
    return None


def _bounds(op: Operation, dim: int) -> tuple[int, int] | None:
    """Return which part along a dim a slice takes; None for one of other dims, or with steps."""
    if not isinstance(op, SliceOp):
        return None
    plain, shape = op.plain, tensor(op.inputs[0]).static_shape()
    starts, stops, steps = (list(plain[name]) for name in ("starts", "stops", "steps"))
    stops = [size if stop == -1 else stop for stop, size in zip(stops, shape, strict=True)]
    if any(step != 1 for step in steps):
        return None
    for place, size in enumerate(shape):
        if place != dim and (starts[place], stops[place]) != (0, size):
            return None
    return (starts[dim], stops[dim]) if starts[dim] < stops[dim] else None


def _is_free(func: FuncOp, body: FuncOp, calls: Sequence[CallOp], weight: Weight) -> bool:
    """Whether each call has a parameter of its own for a weight, which moves as a whole."""
    values = [call.operands[weight.argument.index] for call in calls]
    values = [weight.argument] if body is func else values
    known = {value: (role, number) for number, (role, _, value) in enumerate(arguments(func))}
    attrs = func.arg_attrs.data if func.arg_attrs else ()
    for value in values:
        role, number = known.get(value, ("", 0))
        if role != "parameter" or _only_reader(value) is None:
            return False
        if set(attrs[number].data) - {"role", "name", "trainable"}:
            return False
    return bool(values) and len(set(values)) == len(values)


def _split(func: FuncOp, body: FuncOp, calls: Sequence[CallOp], own: Projection) -> None:
    """Write a product for each part, and let what read a slice read that."""
    weights = _parts_of(func, body, calls, own.weight, own.bounds)
    biases = _parts_of(func, body, calls, own.bias, own.bounds) if own.bias else []
    for number, bounds in enumerate(own.bounds):
        value = _written(own, number, bounds, weights[number], biases[number] if biases else None)
        for leaf, _ in (each for each in own.leaves if each[1] == bounds):
            assert isinstance(value.owner, Operation)
            carry(value.owner, leaf)
            leaf.outputs[0].replace_all_uses_with(value)
            _erase(leaf)
    chains = [own.weight.chain, own.bias.chain if own.bias else ()]
    ops: list[FlowOp] = [*reversed(own.way), *([own.add] if own.add else []), own.contract]
    for op in (*ops, *(op for chain in chains for op in chain)):
        _erase(op)
    for weight in (own.weight, own.bias):
        if weight is not None:
            _drop(func, body, calls, weight.argument)


def _written(
    own: Projection,
    number: int,
    bounds: tuple[int, int],
    weight: SSAValue,
    bias: SSAValue | None,
) -> SSAValue:
    """Write the product of one part, and what is done to it up to its slice."""
    block = own.contract.parent
    assert isinstance(block, Block)
    b = FlowBuilder(block, before=own.contract)
    b.loc = loc_of(own.contract)

    def copied(op: FlowOp, inputs: Sequence[SSAValue], shape: Sequence[int]) -> SSAValue:
        kind = TensorType.of(shape, tensor(op.outputs[0]).dtype)
        (value,) = b.ops(
            type(op), inputs, results=[kind], id=f"{id_of(op)}.{number + 1}", **op.plain
        )
        return value

    def operand(value: SSAValue, source: Weight) -> SSAValue:
        for op in reversed(source.chain):
            shape = tensor(value).static_shape()
            if isinstance(op, TransposeOp):
                perm: tuple[int, ...] = op.plain["perm"]
                shape = tuple(shape[dim] for dim in perm)
            value = copied(op, [value], shape)
        return value

    width = bounds[1] - bounds[0]
    shape = (*tensor(own.contract.outputs[0]).static_shape()[:-1], width)
    value = copied(own.contract, [own.contract.inputs[0], operand(weight, own.weight)], shape)
    if own.add is not None and own.bias is not None and bias is not None:
        value = copied(own.add, [value, operand(bias, own.bias)], shape)
    whole = tensor(own.contract.outputs[0]).static_shape()[-1]
    for op, dim in zip(own.way, own.dims[1:], strict=True):
        after = list(tensor(op.outputs[0]).static_shape())
        after[dim] = after[dim] * width // whole
        value = copied(op, [value], after)
    return value


def _parts_of(
    func: FuncOp, body: FuncOp, calls: Sequence[CallOp], weight: Weight, bounds: Bounds
) -> list[SSAValue]:
    """Add the slices of a weight as parameters, in all calls; return the function's arguments."""
    values = [call.operands[weight.argument.index] for call in calls]
    own = [weight.argument] if body is func else values
    named = {value: name for _, name, value in arguments(func)}
    added: list[list[SSAValue]] = []
    for start, stop in bounds:
        added.append([])
        for whole in own:
            shape = list(tensor(whole).static_shape())
            shape[weight.dim] = stop - start
            kind = TensorType.of(shape, tensor(whole).dtype)
            name = slice_name(named[whole], start, stop)
            assert isinstance(whole, BlockArgument)
            added[-1].append(_inserted(func, whole, kind, name, weight.dim))
    if body is func:
        return [each[0] for each in added]
    parts: list[SSAValue] = []
    for each in added:
        kind = tensor(each[0])
        parts.append(body.body.block.insert_arg(kind, len(body.body.block.args)))
        for call, value in zip(calls, each, strict=True):
            call.operands = [*call.operands, value]
    body.update_function_type()
    return parts


def _inserted(
    func: FuncOp, whole: BlockArgument, kind: TensorType, name: str, dim: int
) -> BlockArgument:
    """Add a slice of a parameter, in front of the whole."""
    number = whole.index
    attrs = list(func.arg_attrs.data) if func.arg_attrs else []
    said = {WHOLE: attrs[number].data["name"], ALONG: IntegerAttr(dim, i64)}
    attrs.insert(number, DictionaryAttr({**attrs[number].data, **said, "name": StringAttr(name)}))
    value = func.body.block.insert_arg(kind, number)
    func.arg_attrs = ArrayAttr(attrs)
    func.update_function_type()
    return value


def _drop(func: FuncOp, body: FuncOp, calls: Sequence[CallOp], argument: BlockArgument) -> None:
    """Take away a weight that has become slices: of the function, its calls, and the entry."""
    number = argument.index
    gone: list[SSAValue] = [argument]
    if body is not func:
        gone = [call.operands[number] for call in calls]
        body.body.block.erase_arg(argument)
        for call in calls:
            call.operands = [v for i, v in enumerate(call.operands) if i != number]
        body.update_function_type()
    for value in gone:
        assert isinstance(value, BlockArgument)
        assert func.arg_attrs is not None
        known = enumerate(func.arg_attrs.data)
        attrs: list[DictionaryAttr] = [own for i, own in known if i != value.index]
        func.body.block.erase_arg(value)
        func.arg_attrs = ArrayAttr(attrs)
    func.update_function_type()


def _erase(op: Operation) -> None:
    op.detach()
    op.erase()
