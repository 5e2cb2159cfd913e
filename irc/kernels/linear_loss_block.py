"""One block of rows of a linear layer's cross-entropy, as a function of flow ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, finish_function, functions
from irc.dialects.flow import ContractOp, ExternOp, loc_of, tensor
from irc.dialects.indexing import GatherOp
from irc.dialects.literals import IotaOp
from irc.dialects.types import TensorType
from irc.kernels.holds import shape_of
from irc.ops.linear_loss import accumulating

Roles: TypeAlias = Mapping[str, SSAValue]

NAME = "cross_entropy_block"


class BlockFunctions:
    """The functions of one op: a first block, those that add to its sums, and a shorter last one.

    Args:
        module: gets the functions.
        before: the function that calls them, before which they stand.
        op: the op that they compute.
    """

    def __init__(self, module: ModuleOp, before: FuncOp, op: ExternOp) -> None:
        self.module, self.before, self.loc = module, before, loc_of(op)
        self._known: dict[tuple[object, ...], FuncOp] = {}

    def call(
        self, b: FlowBuilder, roles: dict[str, SSAValue], wanted: tuple[str, ...]
    ) -> dict[str, SSAValue]:
        """Append a call for one block and return what it gives by role."""
        key = tuple((role, shape_of(value)) for role, value in roles.items())
        if key not in self._known:
            self._known[key] = self._make(roles, wanted)
        func = self._known[key]
        values = b.call(
            func.sym_name.data, list(roles.values()), list(func.function_type.outputs.data)
        )
        return dict(zip(wanted, values, strict=True))

    def _make(self, roles: Roles, wanted: Sequence[str]) -> FuncOp:
        known, number = functions(self.module), 0
        while f"{NAME}_{number}" in known:
            number += 1
        block = Block(arg_types=[value.type for value in roles.values()])
        b = FlowBuilder(block)
        b.loc = self.loc
        row_block = RowBlock(b, dict(zip(roles, block.args, strict=True)))
        func = finish_function(
            f"{NAME}_{number}", block, [row_block.value(role) for role in wanted]
        )
        self.module.body.block.insert_op_before(func, self.before)
        return func


class RowBlock:
    """The values of a block of rows, each appended where it is first asked for.

    Args:
        b: appends to the function.
        roles: by role: ``h`` [n, d], ``w`` [v, d], ``index`` [n], perhaps ``bias`` [v], ``g``,
            ``gs`` and ``sums`` [n], and the sums of earlier blocks ``dw0`` [v, d] and ``db0`` [v].
    """

    def __init__(self, b: FlowBuilder, roles: Roles) -> None:
        self.b, self.roles = b, roles
        self.rows, _ = shape_of(roles["h"])
        self.classes, _ = shape_of(roles["w"])
        self.dtype = tensor(roles["h"]).dtype
        self.wide = accumulating(self.dtype)
        self._values: dict[str, SSAValue] = {}

    def value(self, role: str) -> SSAValue:
        """Return a value by its role: a method of the same name appends it."""
        if role not in self._values:
            self._values[role] = getattr(self, f"_{role}")()
        return self._values[role]

    def _logits(self) -> SSAValue:
        b = self.b
        x = b.op(ContractOp, [self.roles["h"], self.roles["w"]], spec="nd,vd->nv")
        if "bias" in self.roles:
            x = b.pointwise("add", x, self.roles["bias"])
        return b.cast(x, self.wide)

    def _top(self) -> SSAValue:
        return self.b.reduce("max", self.value("logits"), [1], keep_dims=True)

    def _powers(self) -> SSAValue:
        b = self.b
        return b.pointwise("exp", b.pointwise("sub", self.value("logits"), self.value("top")))

    def _total(self) -> SSAValue:
        return self.b.reduce("sum", self.value("powers"), [1], keep_dims=True)

    def _log(self) -> SSAValue:
        return self.b.pointwise("log", self.value("total"))

    def _loss(self) -> SSAValue:
        """``log(total) - (x[index] - top)``: differences of logits, which lose no digits."""
        b = self.b
        column = b.reshape(self.roles["index"], (self.rows, 1))
        picked = b.op(GatherOp, [self.value("logits"), column], dim=1)
        off = b.pointwise("sub", picked, self.value("top"))
        return b.reshape(b.pointwise("sub", self.value("log"), off), (self.rows,))

    def _sums(self) -> SSAValue:
        sums = self.b.pointwise("add", self.value("top"), self.value("log"))
        return self.b.reshape(sums, (self.rows,))

    def _column(self, role: str) -> SSAValue:
        return self.b.reshape(self.roles[role], (self.rows, 1))

    def _start(self) -> SSAValue:
        """What the softmax is multiplied by in the gradient of the logits, [n, 1]."""
        g = self._column("g")
        return self.b.pointwise("add", g, self._column("gs")) if "gs" in self.roles else g

    def _chances(self) -> SSAValue:
        """The softmax times ``g + gs``."""
        b, g = self.b, self.value("start")
        if "sums" not in self.roles:
            share = b.pointwise("div", g, self.value("total"))
            return b.pointwise("mul", self.value("powers"), share)
        off = b.pointwise("sub", self.value("logits"), self._column("sums"))
        return b.pointwise("mul", b.pointwise("exp", off), g)

    def _slopes(self) -> SSAValue:
        """The gradient of the logits, [n, v], in the dtype that matmuls take."""
        b = self.b
        classes = b.op(IotaOp, [], result=TensorType.of((self.classes,), "i32"), dim=0)
        own = b.pointwise("eq", classes, b.cast(self._column("index"), "i32"))
        once = b.pointwise("where", own, self._column("g"), b.scalar(0, self.wide))
        return b.cast(b.pointwise("sub", self.value("chances"), once), self.dtype)

    def _dh(self) -> SSAValue:
        return self.b.op(ContractOp, [self.value("slopes"), self.roles["w"]], spec="nv,vd->nd")

    def _dw(self) -> SSAValue:
        product = self.b.op(ContractOp, [self.value("slopes"), self.roles["h"]], spec="nv,nd->vd")
        return self._added("dw0", product)

    def _db(self) -> SSAValue:
        slopes = self.b.cast(self.value("slopes"), self.wide)
        return self._added("db0", self.b.reduce("sum", slopes, [0], keep_dims=False))

    def _added(self, role: str, value: SSAValue) -> SSAValue:
        """Add the sum of earlier blocks, in the wide dtype."""
        wide = self.b.cast(value, self.wide)
        return self.b.pointwise("add", wide, self.roles[role]) if role in self.roles else wide
