"""Pass ``accumulate-gradients``: a step reads a batch in parts and adds their gradients up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, OpResult, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.builder import arguments, entry, finish_function, functions, results
from irc.dialects.flow import SliceOp, tensor
from irc.dialects.types import TensorType, is_float
from irc.errors import IrcError
from irc.ops.derivative import PhaseBuilder
from irc.training.entry import globs, matches
from irc.training.normalisers import normalisers, shares_of, sum_function, take_shares


@dataclass(frozen=True)
class AccumulateGradientsPass(ModulePass):
    """Run forward and backward for each of some micro-batches, and add their gradients up.

    The activations of one micro-batch are all that is held at a time. The body becomes a function
    that is called ``count`` times; what it gives is planned once. Sums of gradients are sums of
    partial sums where the batch is split: they are reduced once a step, not once a micro-batch.

    Options: ``count`` of micro-batches; ``split`` has globs of the inputs that hold one after the
    other along their first dim, which is then ``count`` times as long; the other inputs, and those
    without dims, are given to each. The loss and the gradients are means over the micro-batches; a
    loss that is divided by a sum over targets (tokens that are not ignored, class weights) is
    divided by that of the batch (`irc.training.normalisers`). Buffers that a micro-batch moves
    (batch-norm statistics) are read by the next; random numbers are others in each.

    Run: accumulate-gradients{count=2}

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[3, 5], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[5], f32> {role = "parameter", name = "w"})
        -> (!flow.tensor<[5], f32> {role = "gradient", name = "w"}) {
      %g = flow.reduce(%x) {fn = "sum", dims = array<i64: 0>, keep_dims = false, loc = "m.py:1",
          id = "n0.g0", phase = "backward"} : (!flow.tensor<[3, 5], f32>) -> !flow.tensor<[5], f32>
      func.return %g : !flow.tensor<[5], f32>
    }
    ```

    After:

    ```mlir
    func.func @micro_batch(%x: !flow.tensor<[3, 5], f32>, %w: !flow.tensor<[5], f32>)
        -> !flow.tensor<[5], f32> {
      %g = flow.reduce(%x) {fn = "sum", dims = array<i64: 0>, keep_dims = false, loc = "m.py:1",
          id = "n0.g0", phase = "backward"} : (!flow.tensor<[3, 5], f32>) -> !flow.tensor<[5], f32>
      func.return %g : !flow.tensor<[5], f32>
    }
    func.func @forward(%x: !flow.tensor<[6, 5], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[5], f32> {role = "parameter", name = "w"})
        -> (!flow.tensor<[5], f32> {role = "gradient", name = "w"}) {
      %0 = flow.slice(%x) {starts = array<i64: 0, 0>, stops = array<i64: 3, 5>,
          steps = array<i64: 1, 1>, loc = "micro-batches", id = "micro0", phase = "forward"}
          : (!flow.tensor<[6, 5], f32>) -> !flow.tensor<[3, 5], f32>
      %1 = func.call @micro_batch(%0, %w) {loc = "micro-batches", id = "micro1",
          phase = "backward"}
          : (!flow.tensor<[3, 5], f32>, !flow.tensor<[5], f32>) -> !flow.tensor<[5], f32>
      %2 = flow.slice(%x) {starts = array<i64: 3, 0>, stops = array<i64: 6, 5>,
          steps = array<i64: 1, 1>, loc = "micro-batches", id = "micro2", phase = "forward"}
          : (!flow.tensor<[6, 5], f32>) -> !flow.tensor<[3, 5], f32>
      %3 = func.call @micro_batch(%2, %w) {loc = "micro-batches", id = "micro3",
          phase = "backward"}
          : (!flow.tensor<[3, 5], f32>, !flow.tensor<[5], f32>) -> !flow.tensor<[5], f32>
      %4 = flow.pointwise(%1, %3) {fn = "add", loc = "micro-batches", id = "micro4",
          phase = "backward", grad = "weight"}
          : (!flow.tensor<[5], f32>, !flow.tensor<[5], f32>) -> !flow.tensor<[5], f32>
      %5 = flow.constant() {value = array<f64: 0.5>, loc = "micro-batches", id = "micro5",
          phase = "backward", grad = "weight"} : () -> !flow.tensor<[], f32>
      %6 = flow.pointwise(%4, %5) {fn = "mul", loc = "micro-batches", id = "micro6",
          phase = "backward", grad = "weight"}
          : (!flow.tensor<[5], f32>, !flow.tensor<[], f32>) -> !flow.tensor<[5], f32>
      func.return %6 : !flow.tensor<[5], f32>
    }
    ```

    It declines a program that returns more than losses, or writes into an input that it splits.
    """

    name = "accumulate-gradients"
    level: ClassVar[str] = "flow"

    count: int = 2
    split: str = "*"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Call the body of the entry once for each micro-batch."""
        if self.count < 1:
            raise IrcError("option-value", f"accumulate-gradients{{count={self.count}}}: 1 or more")
        if self.count > 1:
            _Accumulation(op, self.count, globs(self.split)).run()


class _Accumulation:
    """One module on its way from a micro-batch to a batch."""

    def __init__(self, module: ModuleOp, count: int, split: Sequence[str]) -> None:
        self.module, self.count = module, count
        self.body = entry(module)
        self.given, self.made = arguments(self.body), results(self.body)
        self.cut = {
            name
            for role, name, value in self.given
            if role == "input" and tensor(value).ndim and matches(name, split)
        }
        _check(self.body, self.cut)
        end = self.body.body.block.last_op
        assert isinstance(end, ReturnOp)
        self._origins = [_origin(value) for value in end.operands]
        self._alike = Counter(self._origins)
        self._means: dict[object, str] = {}
        self.block = Block(arg_types=[self._whole(name, value) for _, name, value in self.given])
        self.b = PhaseBuilder(self.block, "backward", prefix="micro", loc="micro-batches")

    def _whole(self, name: str, value: SSAValue) -> TensorType:
        kind = tensor(value)
        if name not in self.cut:
            return kind
        first, *rest = kind.static_shape()
        return TensorType.of((first * self.count, *rest), kind.dtype)

    def run(self) -> None:
        """Write the new entry, before which the old one stands as a function."""
        attrs = None if self.body.arg_attrs is None else list(self.body.arg_attrs)
        named = None if self.body.res_attrs is None else list(self.body.res_attrs)
        shares = self._shares()
        name, kinds = self._outline(), list(self.body.function_type.outputs.data)
        moved: dict[str, SSAValue] = {}
        calls: list[Sequence[SSAValue]] = []
        for number in range(self.count):
            operands = [*self._operands(number, moved), *shares]
            values = self._call(name, operands, kinds, "backward")
            calls.append(values)
            pairs = zip(self.made, values, strict=True)
            moved.update({n: value for (role, n), value in pairs if role == "state"})
        found = [
            calls[-1][i]
            if role == "state"
            else self._mean(i, role, [values[i] for values in calls])
            for i, (role, _) in enumerate(self.made)
        ]
        func = finish_function("forward", self.block, found, arg_attrs=attrs, res_attrs=named)
        self.module.body.block.add_op(func)

    def _shares(self) -> list[SSAValue]:
        """Return what micro-batches are given of sums over the batch; the body takes it."""
        block = self.body.body.block
        written = {name for role, name in self.made if role == "state"}
        same = [
            value
            for role, name, value in self.given
            if role in ("input", "constant", "buffer") and name not in written
        ]
        cut = [value for _, name, value in self.given if name in self.cut]
        found = normalisers(block, same, cut)
        if not found.shares:
            return []
        function, func = sum_function(found, block, self._free("sums"))
        self.module.body.block.insert_op_before(func, self.body)
        self.b.phase = "forward"
        kinds = [value.type for value in found.sums]
        called: list[Sequence[SSAValue]] = []
        for number in range(self.count):
            operands = self._operands(number, {}, function.reads)
            self.b.phase = "forward"
            called.append(self._call(function.name, operands, kinds, "forward"))
        whole = {
            value: argument
            for (_, name, value), argument in zip(self.given, self.block.args, strict=True)
            if name not in self.cut
        }
        shares = shares_of(found, called, whole, self.b, self.block)
        self.b.phase = "backward"
        take_shares(found, block)
        self.body.update_function_type()
        return shares

    def _call(
        self, name: str, operands: Sequence[SSAValue], kinds: Sequence[Attribute], phase: str
    ) -> list[SSAValue]:
        values = self.b.call(name, operands, kinds)
        owner = values[0].owner
        assert isinstance(owner, CallOp)
        owner.attributes["phase"] = StringAttr(phase)
        return values

    def _free(self, name: str) -> str:
        known, number = functions(self.module), 0
        while (free := f"{name}_{number}" if number else name) in known:
            number += 1
        return free

    def _outline(self) -> str:
        """Make a function of the entry and return its name."""
        name = self._free("micro_batch")
        self.body.properties["sym_name"] = StringAttr(name)
        self.body.arg_attrs = None
        self.body.res_attrs = None
        return name

    def _operands(
        self, number: int, moved: dict[str, SSAValue], reads: Sequence[int] | None = None
    ) -> list[SSAValue]:
        """Return the arguments of one micro-batch, or those of them that a function reads."""
        b, found = self.b, list[SSAValue]()
        b.phase = "forward"
        for index, (role, name, value) in enumerate(self.given):
            whole = self.block.args[index]
            if reads is not None and index not in reads:
                continue
            if role == "seed":
                scaled = b.pointwise("mul", whole, b.scalar(self.count, "i64"))
                found.append(b.pointwise("add", scaled, b.scalar(number, "i64")))
            elif name in self.cut:
                found.append(self._part(whole, tensor(value).static_shape(), number))
            else:
                found.append(moved.get(name, whole))
        b.phase = "backward"
        return found

    def _part(self, whole: SSAValue, shape: tuple[int, ...], number: int) -> SSAValue:
        first, *rest = shape
        return self.b.op(
            SliceOp,
            [whole],
            starts=(number * first, *(0 for _ in rest)),
            stops=((number + 1) * first, *rest),
            steps=(1,) * len(shape),
        )

    def _mean(self, index: int, role: str, values: Sequence[SSAValue]) -> SSAValue:
        """Return the mean of a result: by a function, where that of other layers is made alike."""
        origin = self._origins[index]
        if role != "gradient" or self._alike[origin] == 1:
            return self._added_up(self.b, role, values)
        if origin not in self._means:
            name = self._free(f"mean_{len(self._means)}")
            block = Block(arg_types=[value.type for value in values])
            b = PhaseBuilder(block, "backward", prefix=f"{name}.", loc="micro-batches")
            func = finish_function(name, block, [self._added_up(b, role, list(block.args))])
            self.module.body.block.add_op(func)
            self._means[origin] = name
        return self._call(self._means[origin], values, [values[0].type], "backward")[0]

    def _added_up(self, b: PhaseBuilder, role: str, values: Sequence[SSAValue]) -> SSAValue:
        b.part, b.phase = ("weight", "backward") if role == "gradient" else (None, "forward")
        total = values[0]
        for value in values[1:]:
            total = b.pointwise("add", total, value)
        found = b.pointwise("mul", total, b.scalar(1 / self.count, tensor(total).dtype))
        b.part, b.phase = None, "backward"
        return found


def _origin(value: SSAValue) -> object:
    """Return what is equal for gradients that layers of one block get in one way."""
    if isinstance(value, OpResult) and isinstance(value.op, CallOp):
        return value.op.callee.string_value(), value.index
    return value


def _check(func: FuncOp, cut: set[str]) -> None:
    """Refuse what has no mean over micro-batches.

    Raises:
        IrcError: ``option-value``, or ``size-unbound`` for sizes that are names.
    """
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    for (role, name), value in zip(results(func), end.operands, strict=True):
        is_loss = tensor(value).shape == () and is_float(tensor(value).dtype)
        if role == "output" and not is_loss:
            raise IrcError(
                "option-value",
                f"accumulate-gradients: result '{name}' is {tensor(value)}, and no loss",
                because="a loss is one real number, and that of a batch is the mean over its parts",
                help="run differentiate before it, with outputs=loss",
            )
        if role == "state" and name in cut:
            raise IrcError(
                "option-value",
                f"accumulate-gradients: the program writes into input '{name}', which it cuts",
                help="leave it out of option split",
            )
    for _, name, value in arguments(func):
        sizes = [d for d in tensor(value).shape if not isinstance(d, int)]
        if name in cut and sizes:
            raise IrcError(
                "size-unbound",
                f"input '{name}' has the named size {sizes[0]}",
                help="run bind-sizes before accumulate-gradients",
            )
