"""Which scatters may write into the caller's memory instead of into a copy of it.

A static key-value cache is a large tensor of which a call changes a few rows. Where nothing but the
scatter reads the old value, and what it gives is the new one, the rows are written in place.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from irc.dialects.builder import arguments, results
from irc.dialects.flow import ScatterOp, id_of, tensor


def scatters_in_place(entry: FuncOp, known: Mapping[str, FuncOp]) -> set[tuple[str, Operation]]:
    """Return the scatters, each with the path of calls (``n14/``) under which it may do so.

    Args:
        entry: whose arguments of role ``cache`` are the caller's.
        known: the functions of the module by name.
    """
    held = {name: value for role, name, value in arguments(entry) if role == "cache"}
    end = entry.body.block.last_op
    assert isinstance(end, ReturnOp)
    found: set[tuple[str, Operation]] = set()
    for (role, name), value in zip(results(entry), end.operands, strict=True):
        if role == "state" and name in held:
            path, op, source = _origin(value, known)
            if op is not None and source is held[name] and _is_only_read_once(held[name]):
                found.add((path, op))
    return found


def _origin(
    value: SSAValue, known: Mapping[str, FuncOp]
) -> tuple[str, ScatterOp | None, SSAValue | None]:
    """Follow a value down into blocks to the scatter that makes it, and up again to its target."""
    path, calls = "", list[CallOp]()
    while isinstance(value, OpResult) and isinstance(call := value.op, CallOp):
        end = known[call.callee.string_value()].body.block.last_op
        assert end is not None
        calls.append(call)
        path += f"{id_of(call)}/"
        value = end.operands[value.index]
    op = value.owner
    if not isinstance(op, ScatterOp) or op.fn.data != "set":
        return path, None, None
    source = op.inputs[0]
    for call in reversed(calls):
        if not isinstance(source, BlockArgument) or not _is_only_read_once(source):
            return path, None, None
        source = call.operands[source.index]
    same = tensor(source) == tensor(value)
    return path, op if same else None, source


def _is_only_read_once(value: SSAValue) -> bool:
    return len(list(value.uses)) == 1
