"""Sums of gradients over micro-batches: each gradient is added where it is computed.

A gradient that the backward function of a repeated block gives is added to its accumulator inside
that function, so that one kernel does both, and layers that are alike keep sharing their functions.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, OpResult, SSAValue

from irc.dialects.builder import argument_attrs, entry, functions, results
from irc.dialects.flow import tensor
from irc.ops.derivative import PhaseBuilder
from irc.training.entry import add_arguments, set_results

MICRO_BATCHES = "irc.micro_batches"
"""Attribute of a module that is of one of some micro-batches: how many there are."""
ACCUMULATOR = "accumulator"
"""Role of the sum of a parameter's gradients over micro-batches."""
ACCUMULATED = "accumulated."
"""First letters of the name of an accumulator, before that of its parameter."""


def accumulate(module: ModuleOp, count: int) -> None:
    """Add each gradient of the entry to an accumulator, in place; ``count`` micro-batches do so.

    The results of role gradient become the sums, which are also the accumulators' new values.
    """
    module.attributes[MICRO_BATCHES] = IntegerAttr(count, 64)
    func = entry(module)
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    entry_results = [
        (role, name, v) for (role, name), v in zip(results(func), end.operands, strict=True)
    ]
    gradients = [(name, v) for role, name, v in entry_results if role == "gradient"]
    end.detach()
    wanted = [(tensor(v), ACCUMULATOR, f"{ACCUMULATED}{name}") for name, v in gradients]
    sums = dict(zip((name for name, _ in gradients), add_arguments(func, wanted), strict=True))
    inside = _callees(module, [v for _, v in gradients])
    totals: dict[str, SSAValue] = {}
    grown: dict[CallOp, dict[int, SSAValue]] = {}
    b = PhaseBuilder(func.body.block, "backward", prefix="sum", loc="micro-batches")
    b.part = "weight"
    for name, value in gradients:
        if isinstance(value, OpResult) and value.op in inside:
            assert isinstance(value.op, CallOp)
            grown.setdefault(value.op, {})[value.index] = sums[name]
            totals[name] = value
        else:
            totals[name] = b.pointwise("add", sums[name], value)
    renewed = _grow(module, grown, inside)
    kept: list[tuple[SSAValue, DictionaryAttr]] = []
    for role, name, value in entry_results:
        value = renewed.get(value, value)
        if role == "gradient":
            total = renewed.get(totals[name], totals[name])
            kept.append((total, argument_attrs("gradient", name)))
            kept.append((total, argument_attrs("state", f"{ACCUMULATED}{name}")))
        else:
            kept.append((value, argument_attrs(role, name)))
    func.body.block.add_op(end)
    set_results(func, [v for v, _ in kept], [a for _, a in kept])


def _callees(module: ModuleOp, gradients: list[SSAValue]) -> dict[Operation, tuple[int, ...]]:
    """Return, by call, which of its results are gradients, where all calls of a function agree."""
    own: dict[CallOp, list[int]] = {}
    for value in gradients:
        if not isinstance(value, OpResult) or not isinstance(value.op, CallOp):
            continue
        # What an op reads too is wanted as it is, without the sum.
        if all(isinstance(use.operation, ReturnOp) for use in value.uses):
            own.setdefault(value.op, []).append(value.index)
    calls: dict[str, list[CallOp]] = {}
    for func in functions(module).values():
        for op in func.body.block.ops:
            if isinstance(op, CallOp):
                calls.setdefault(op.callee.string_value(), []).append(op)
    chosen: dict[Operation, tuple[int, ...]] = {}
    for each in calls.values():
        indices = {tuple(sorted(own.get(call, ()))) for call in each}
        counts = {len(set(own.get(call, ()))) == len(own.get(call, ())) for call in each}
        if len(indices) == 1 and counts == {True} and (common := indices.pop()):
            chosen.update(dict.fromkeys(each, common))
    return chosen


def _grow(
    module: ModuleOp,
    sums: dict[CallOp, dict[int, SSAValue]],
    inside: dict[Operation, tuple[int, ...]],
) -> dict[SSAValue, SSAValue]:
    """Give the functions of some calls accumulators, and the calls what they are; return results.

    Returns:
        The new result of each old one.
    """
    known, done = functions(module), set[str]()
    renewed: dict[SSAValue, SSAValue] = {}
    for call, own in sums.items():
        name = call.callee.string_value()
        if name not in done:
            _grow_function(known[name], inside[call])
            done.add(name)
        operands = [*call.operands, *(own[i] for i in inside[call])]
        new = CallOp(name, operands, [r.type for r in call.results])
        new.attributes.update(call.attributes)
        block = call.parent
        assert block is not None
        block.insert_op_before(new, call)
        for old, result in zip(call.results, new.results, strict=True):
            renewed[old] = result
            old.replace_all_uses_with(result)
        call.detach()
        call.erase()
    return renewed


def _grow_function(func: FuncOp, indices: tuple[int, ...]) -> None:
    block = func.body.block
    end = block.last_op
    assert isinstance(end, ReturnOp)
    values = list(end.operands)
    end.detach()
    end.erase()
    b = PhaseBuilder(block, "backward", prefix=f"{func.sym_name.data}.sum", loc="micro-batches")
    b.part = "weight"
    for i in indices:
        argument = block.insert_arg(values[i].type, len(block.args))
        values[i] = b.pointwise("add", argument, values[i])
    block.add_op(ReturnOp(*values))
    if func.arg_attrs is not None:
        more = len(block.args) - len(func.arg_attrs.data)
        func.arg_attrs = ArrayAttr([*func.arg_attrs.data, *[argument_attrs("value", "")] * more])
    func.update_function_type()
