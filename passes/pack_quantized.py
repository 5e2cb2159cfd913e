"""Pass ``pack-quantized``: products of quantised operands run on the integers themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ContractOp, carry, loc_of
from irc.kernels.fixed import Fixed
from irc.kernels.holds import require_static
from irc.kernels.quantized_contract import packed_product


@dataclass(frozen=True)
class PackQuantizedPass(ModulePass):
    """Rewrite contractions of dequantised values."""

    name = "pack-quantized"
    level: ClassVar[str] = "spmd"

    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.target != "cpu":
            return
        fixed = Fixed(op)
        for number, func in enumerate(op.body.block.ops):
            if isinstance(func, FuncOp) and not func.is_declaration:
                _rewrite(func, fixed, f"p{number}_")


def _rewrite(func: FuncOp, fixed: Fixed, prefix: str) -> None:
    require_static(func)
    block = func.body.block
    for number, op in enumerate(list(block.ops)):
        if not isinstance(op, ContractOp):
            continue
        b = FlowBuilder(block, f"{prefix}{number}_", before=op)
        b.loc = loc_of(op)
        found = packed_product(b, op, fixed)
        if found is None:
            continue
        carry(found.owner, op)
        op.outputs[0].replace_all_uses_with(found)
        op.detach()
        op.erase()
