"""The kernels of a module, each of them once: which template computes a group of ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import SSAValue

from irc.dialects.flow import ExternOp, FlowOp, id_of
from irc.dialects.packed_products import EXPECTED
from irc.dialects.task import KernelOp
from irc.kernels.along import along_kernel, is_along
from irc.kernels.attention import attention_kernel, is_attention
from irc.kernels.attention_backward import attention_backward_kernel, is_attention_backward
from irc.kernels.holds import COMPUTE_OPS, FREE_OPS
from irc.kernels.lower import Lowered, lower
from irc.kernels.names import hint, identity
from irc.kernels.nest import nest_of
from irc.kernels.orders import Orders
from irc.kernels.recurrent import TARGET, recurrent_kernel
from irc.kernels.trace import Stored
from irc.kernels.weights.fixed import Fixed
from irc.kernels.weights.panels import Packed, packed, weight_of
from irc.kernels.weights.windows import packed_windows


class KernelTable:
    """The kernels of a module: equal ones are made once.

    With ``any_rows`` the number of rows decides nothing, as long as it is above one.
    """

    def __init__(self, target: str, fixed: Fixed, *, any_rows: bool = False) -> None:
        self.target, self.fixed, self.any_rows = target, fixed, any_rows
        self._known: dict[str, KernelOp] = {}

    @property
    def kernels(self) -> list[KernelOp]:
        """All kernels, in order of their names."""
        return list(self._known.values())

    def lower(
        self,
        ops: Sequence[FlowOp],
        outputs: Sequence[SSAValue],
        source: Callable[[SSAValue], Stored],
        loc: str,
        orders: Orders,
    ) -> Lowered:
        """Return the kernel of a group, not one of the table yet.

        Raises:
            GroupError: where the group is no kernel.
        """
        if is_attention(ops[0], self.target):
            return attention_kernel(ops[0], source, orders, self.target, any_rows=self.any_rows)
        if is_along(ops[0], self.target):
            return along_kernel(ops[0], source)
        if is_attention_backward(ops[0], self.target):
            return attention_backward_kernel(ops[0], source, orders, self.target)
        if isinstance(op := ops[0], ExternOp) and op.target == TARGET:
            return recurrent_kernel(op, source)
        nest = nest_of(ops, outputs, source, orders)
        sources = [id_of(op) for op in ops if op.name in COMPUTE_OPS | FREE_OPS]
        lowered = lower(
            nest, name=hint(nest), target=self.target, loc=loc, sources=sources,
            any_rows=self.any_rows,
        )  # fmt: skip
        parts = {op.attributes.get(EXPECTED) for op in ops if op.name in COMPUTE_OPS}
        if len(parts) == 1 and (part := parts.pop()) is not None:
            lowered.kernel.attributes[EXPECTED] = part
        return lowered

    def packed(self, lowered: Lowered) -> Packed | None:
        """Return a matmul as it reads a packed weight, where packing pays: the weight stays.

        A convolution always does: packing costs less than what it saves in one call.
        """
        if self.target == "cpu" and (windows := packed_windows(lowered.kernel)) is not None:
            return windows
        argument = weight_of(lowered.kernel, self.any_rows) if self.target == "cpu" else None
        if argument is None or not self.fixed(lowered.operands[argument]):
            return None
        return packed(lowered.kernel, argument, any_rows=self.any_rows)

    def add(self, kernel: KernelOp) -> KernelOp:
        """Return an equal kernel that is known, or name and keep this one."""
        key = identity(kernel)
        known = self._known.get(key)
        if known is None:
            kernel.properties["sym_name"] = StringAttr(
                f"k{len(self._known)}_{kernel.sym_name.data}"
            )
            self._known[key] = kernel
            return kernel
        merged = dict.fromkeys([*_sources(known), *_sources(kernel)])
        known.properties["sources"] = ArrayAttr([StringAttr(s) for s in merged])
        return known


def _sources(kernel: KernelOp) -> list[str]:
    return [] if kernel.sources is None else [s.data for s in kernel.sources]
