"""Pass ``bind-sizes``: named sizes become numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.size import Size, bind
from irc.dialects.types import ShapeAttr, TensorType
from irc.errors import IrcError, did_you_mean


@dataclass(frozen=True)
class BindSizesPass(ModulePass):
    """Replace the names in all sizes by numbers, so that sharding and kernels can be planned.

    Run: bind-sizes{sizes="B=4,S=16"}

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[B, 4*S], f32>) -> !flow.tensor<[B, 4*S], f32> {
      %0 = flow.pointwise(%x) {fn = "exp", loc = "m.py:3", id = "n0"}
          : (!flow.tensor<[B, 4*S], f32>) -> !flow.tensor<[B, 4*S], f32>
      func.return %0 : !flow.tensor<[B, 4*S], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4, 64], f32>) -> !flow.tensor<[4, 64], f32> {
      %0 = flow.pointwise(%x) {fn = "exp", loc = "m.py:3", id = "n0"}
          : (!flow.tensor<[4, 64], f32>) -> !flow.tensor<[4, 64], f32>
      func.return %0 : !flow.tensor<[4, 64], f32>
    }
    ```

    A name that the program has and ``sizes`` lacks is an error, and so is one the program lacks.
    """

    name = "bind-sizes"
    level: ClassVar[str] = "flow"

    sizes: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        values = parse_sizes(self.sizes)
        wanted = size_names(op)
        _check(values, wanted)
        binder = _Binder(values)
        for func in op.body.block.ops:
            if isinstance(func, FuncOp):
                binder.bind_function(func)


def parse_sizes(text: str) -> dict[str, int]:
    """Parse ``B=4,S=16``.

    Raises:
        IrcError: ``option-value``, with the part that is wrong.
    """
    found: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, number = (p.strip() for p in part.partition("="))
        if not (equals and name.isidentifier() and number.isascii() and number.isdigit()):
            raise IrcError(
                "option-value",
                f"cannot read the size '{part}'",
                because="a size is name=number",
                help='write: bind-sizes{sizes="B=4,S=16"}',
            )
        if found.setdefault(name, int(number)) != int(number):
            raise IrcError("option-value", f"size '{name}' is given as {found[name]} and {number}")
    return found


def size_names(module: ModuleOp) -> frozenset[str]:
    """Return the names in the sizes of a module's tensors."""
    shapes: list[TensorType] = []
    for op in module.walk():
        values: list[SSAValue] = list(op.results)
        values += [arg for region in op.regions for block in region.blocks for arg in block.args]
        shapes += [v.type for v in values if isinstance(v.type, TensorType)]
    dims = [dim for kind in shapes for dim in kind.shape]
    return frozenset(name for dim in dims if isinstance(dim, Size) for name in dim.names())


def _check(values: Mapping[str, int], wanted: frozenset[str]) -> None:
    if missing := sorted(wanted - set(values)):
        raise IrcError(
            "size-unbound",
            f"no number for size {', '.join(map(repr, missing))}",
            because="every size must be a number before the program is sharded",
            help=f"add {','.join(f'{name}=8' for name in missing)} (with your numbers) to sizes",
        )
    if unknown := sorted(set(values) - wanted):
        help_line = did_you_mean(unknown[0], wanted) if wanted else "all its sizes are numbers"
        raise IrcError(
            "option-value",
            f"the program has no size {', '.join(map(repr, unknown))}",
            help=help_line,
        )


class _Binder:
    """Replaces sizes in types and attributes; a type that recurs is replaced once."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values
        self.known: dict[Attribute, Attribute] = {}

    def bind_function(self, func: FuncOp) -> None:
        """Bind the function's type, and all that is inside."""
        kind = func.function_type
        func.properties["function_type"] = FunctionType.from_lists(
            [self.attribute(a) for a in kind.inputs], [self.attribute(a) for a in kind.outputs]
        )
        for block in func.body.blocks:
            self._block(block)

    def _block(self, block: Block) -> None:
        for arg in block.args:
            self._value(arg)
        for op in block.ops:
            for value in op.results:
                self._value(value)
            for table in (op.attributes, op.properties):
                for key, attr in list(table.items()):
                    table[key] = self.attribute(attr)
            for region in op.regions:
                for inner in region.blocks:
                    self._block(inner)

    def _value(self, value: SSAValue) -> None:
        bound = self.attribute(value.type)
        if bound is not value.type:
            value._type = bound  # pyright: ignore[reportPrivateUsage] - keeps uses and names

    def attribute(self, attr: Attribute) -> Attribute:
        """Return an attribute with its sizes bound."""
        if not isinstance(attr, TensorType | ShapeAttr):
            return attr
        if attr not in self.known:
            if isinstance(attr, ShapeAttr):
                self.known[attr] = ShapeAttr(tuple(bind(d, self.values) for d in attr.data))
            else:
                shape = self.attribute(attr.shape_attr)
                assert isinstance(shape, ShapeAttr)
                self.known[attr] = TensorType(shape, attr.element_type, attr.placement_attr)
        return self.known[attr]
