"""Calls of blocks become what the blocks do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import cloned
from irc.dialects.flow import id_of
from irc.dialects.noted import rename_ids
from irc.errors import IrcError

MAX_CALL_DEPTH = 32


class Inlining:
    """Writes the ops of blocks in front of calls.

    Args:
        known: the functions of the module by name.

    Attributes:
        called: names of those whose calls were replaced.
    """

    def __init__(self, known: Mapping[str, FuncOp]) -> None:
        self.called: dict[str, None] = {}
        self._known = known

    def replace(self, call: CallOp) -> list[Operation]:
        """Put the ops of a block in the place of a call of the entry, and return them.

        Ids get the path of calls in front (``n4/b0n1``). Calls in the block are replaced as well.

        Raises:
            IrcError: ``ir-invalid`` where a block calls itself.
        """
        block = call.parent_block()
        assert block is not None
        ops: list[Operation] = []
        values = self._body(call, call.operands, "", 0, ops)
        block.insert_ops_before(ops, call)
        for result, value in zip(call.results, values, strict=True):
            result.replace_all_uses_with(value)
        call.detach()
        call.erase()
        return ops

    def _body(
        self,
        call: CallOp,
        operands: Sequence[SSAValue],
        path: str,
        depth: int,
        ops: list[Operation],
    ) -> list[SSAValue]:
        name = call.callee.string_value()
        if depth > MAX_CALL_DEPTH:
            raise IrcError("ir-invalid", f"@{name} calls itself, or too deeply")
        self.called[name] = None
        block, path = self._known[name].body.block, f"{path}{id_of(call)}/"
        values: dict[SSAValue, SSAValue] = dict(zip(block.args, operands, strict=True))
        for op in block.ops:
            if isinstance(op, ReturnOp):
                break
            if isinstance(op, CallOp):
                results = self._body(op, [values[v] for v in op.operands], path, depth + 1, ops)
            else:
                copy = cloned(op, values)
                # What has no id of its own goes by that of the call.
                copy.attributes.setdefault("id", StringAttr(""))
                rename_ids(copy, path.__add__)
                ops.append(copy)
                results = copy.results
            values.update(zip(op.results, results, strict=True))
        end = block.last_op
        assert end is not None
        return [values[value] for value in end.operands]
