"""Projections whose result is cut into parts, as queries, keys and values are: one for each part.

Ranks that divide the rows of ``qkv`` among them have contiguous ones: with four ranks the first has
three quarters of all queries and nothing else, and to divide heads everything moves. Where queries,
keys and values have weights of their own, ranks have the heads of each that they compute with.

The parts of a weight are its *slices* (:mod:`irc.training.slices`), each a parameter with a name of
its own. Whoever loads or saves the model knows the whole one. Which products are projections says
:mod:`irc.training.cut_products`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from irc.dialects.builder import FlowBuilder, arguments, entry, functions
from irc.dialects.flow import FlowOp, TransposeOp, carry, id_of, loc_of, tensor
from irc.dialects.types import TensorType
from irc.training.cut_products import Bounds, Projection, Weight, only_reader, projections_in
from irc.training.entry import globs, matches
from irc.training.recipe import Recipe
from irc.training.slices import Sliced, slice_name

WHOLE, ALONG = "whole", "along"
"""Attributes of a parameter that is a slice: of which one, and along which dim it is cut."""


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
        for each in list(projections_in(body)):
            weights = [each.weight, *([each.bias] if each.bias else [])]
            if all(_is_free(func, body, own, weight) for weight in weights):
                _split(func, body, own, each)


def slices_in(func: FuncOp) -> dict[str, Sliced]:
    """Return by name the weights that a program has in slices.

    Args:
        func: the entry.
    """
    slices: dict[str, list[tuple[int, int, str, int]]] = {}
    for (_, name, _), attrs in zip(
        arguments(func), func.arg_attrs.data if func.arg_attrs else (), strict=False
    ):
        whole, along = attrs.data.get(WHOLE), attrs.data.get(ALONG)
        if isinstance(whole, StringAttr) and isinstance(along, IntegerAttr):
            start, _, stop = name.rpartition(":")[2].partition("-")
            own = int(start), int(stop), name, along.value.data
            slices.setdefault(whole.data, []).append(own)
    sliced: dict[str, Sliced] = {}
    for whole, parts in slices.items():
        starts, stops, names, dims = zip(*sorted(parts), strict=True)
        sliced[whole] = Sliced(names, dims[0], starts, stops)
    return sliced


def known_names(func: FuncOp) -> dict[SSAValue, str]:
    """Return by argument the name by which a user knows it: of a slice, that of the whole.

    Args:
        func: the entry.
    """
    names = {value: name for _, name, value in arguments(func)}
    attrs = func.arg_attrs.data if func.arg_attrs else ()
    for value, own in zip(names, attrs, strict=False):
        if isinstance(whole := own.data.get(WHOLE), StringAttr):
            names[value] = whole.data
    return names


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


def _is_free(func: FuncOp, body: FuncOp, calls: Sequence[CallOp], weight: Weight) -> bool:
    """Whether each call has a parameter of its own for a weight, which moves as a whole."""
    values = [call.operands[weight.argument.index] for call in calls]
    values = [weight.argument] if body is func else values
    known = {value: (role, number) for number, (role, _, value) in enumerate(arguments(func))}
    attrs = func.arg_attrs.data if func.arg_attrs else ()
    for value in values:
        role, number = known.get(value, ("", 0))
        if role != "parameter" or only_reader(value) is None:
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
                perm: tuple[int, ...] = op.perm
                shape = tuple(shape[dim] for dim in perm)
            value = copied(op, [value], shape)
        return value

    width = bounds[1] - bounds[0]
    shape = (*tensor(own.contract.outputs[0]).static_shape()[:-1], width)
    value = copied(own.contract, [own.contract.a, operand(weight, own.weight)], shape)
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
