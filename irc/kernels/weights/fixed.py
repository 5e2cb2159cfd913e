"""Which values are the same at every call: weights that no call writes, and what is made of them.

A kernel may then ask for such a value in the layout that suits it; the plan makes it once
(pass ``prepare-weights``).
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import arguments, functions, results
from irc.dialects.comm import RankIndexOp
from irc.dialects.flow import ExternOp, FlowOp
from irc.dialects.literals import RandomOp

CONSTANT_ROLES = ("parameter", "buffer", "constant")
"""Roles of arguments that stay from call to call, unless the program says what they become."""
IMPURE = (RandomOp, ExternOp, RankIndexOp)
"""Ops that are not functions of their operands, or of which that is not known."""


class Fixed:
    """Answers for the values of a module; its functions may be rewritten between questions.

    Args:
        module: all its functions; the arguments of a block are fixed where they are so at each
            of its calls.
    """

    def __init__(self, module: ModuleOp) -> None:
        self._known: dict[SSAValue, bool] = {}
        known = functions(module)
        calls: dict[str, list[CallOp]] = {}
        for func in known.values():
            for op in func.walk():
                if isinstance(op, CallOp):
                    calls.setdefault(op.callee.string_value(), []).append(op)
        # A function stands behind those that call it, or before: settle callers first.
        pending = list(known)
        while pending:
            ready = [n for n in pending if not any(_caller(c) in pending for c in calls.get(n, ()))]
            for name in ready or pending:
                func = known[name]
                states = {own for role, own in results(func) if role == "state"}
                for position, (role, own, value) in enumerate(arguments(func)):
                    operands = [call.operands[position] for call in calls.get(name, ())]
                    is_weight = role in CONSTANT_ROLES and own not in states
                    fixed = all(map(self, operands)) if operands else is_weight
                    self._known[value] = fixed and bool(ready)
            pending = [name for name in pending if name not in (ready or pending)]

    def __call__(self, value: SSAValue) -> bool:
        """True where a value does not change from call to call."""
        pending = [value]  # a stack of our own: programs are deeper than Python's
        while pending:
            op = pending[-1].owner
            if pending[-1] in self._known:
                pending.pop()
            elif not (isinstance(op, FlowOp) and _is_pure(op)):
                self._known[pending.pop()] = False
            elif unknown := [v for v in op.inputs if v not in self._known]:
                pending += unknown
            else:
                self._known[pending.pop()] = all(self._known[v] for v in op.inputs)
        return self._known[value]


def _is_pure(op: Operation) -> bool:
    return not isinstance(op, IMPURE) and not op.name.startswith("comm.")


def _caller(call: CallOp) -> str:
    parent = call.parent_op()
    while parent is not None and parent.name != "func.func":
        parent = parent.parent_op()
    name = parent.properties.get("sym_name") if parent is not None else None
    return getattr(name, "data", "")
