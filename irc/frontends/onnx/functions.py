"""The functions of a program beside its entry: bodies that the run calls as often as values say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects.func import FuncOp

from irc.dialects.flow import ExternOp
from irc.runtime.onnx_ops.run import decoded, functions_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Function:
    """A function and the weights that it reads, by name."""

    func: FuncOp
    tensors: Mapping[str, torch.Tensor]


class Functions:
    """The bodies of one program by name."""

    def __init__(self) -> None:
        self._all: dict[str, Function] = {}

    def fresh(self, kind: str) -> str:
        """Return a name that no function has: ``loop_0``."""
        return f"{kind.lower()}_{len(self._all)}"

    def add(self, func: FuncOp, tensors: Mapping[str, torch.Tensor]) -> None:
        """Keep a function."""
        self._all[func.sym_name.data] = Function(func, tensors)

    def called_by(self, func: FuncOp) -> list[Function]:
        """Return the functions that one calls, themselves or through others, callers first.

        Others were made on the way: of a loop that was imported again with other types.
        """
        called: dict[str, None] = {}
        stack = [func]
        while stack:
            for op in stack.pop().body.block.ops:
                if not isinstance(op, ExternOp):
                    continue
                for name in functions_of(decoded(op.arguments)):
                    if name not in called:
                        called[name] = None
                        stack.append(self._all[name].func)
        return [self._all[name] for name in called]
