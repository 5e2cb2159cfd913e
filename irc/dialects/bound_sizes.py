"""Numbers in place of the named sizes of a flow program."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, SSAValue

from irc.dialects.size import Size, bind
from irc.dialects.types import ShapeAttr, TensorType


def bound_module(module: ModuleOp, values: Mapping[str, int]) -> ModuleOp:
    """Return a copy of a module with numbers for its names.

    Args:
        module: it is not changed.
        values: numbers; names that it does not give stay.
    """
    clone = module.clone()
    bind_module(clone, values)
    return clone


def bind_module(module: ModuleOp, values: Mapping[str, int]) -> None:
    """Put numbers for names into a module, in place."""
    binder = _Binder(values)
    for func in module.body.block.ops:
        if isinstance(func, FuncOp):
            binder.bind_function(func)


def size_names(module: ModuleOp) -> frozenset[str]:
    """Return the names in the sizes of a module's tensors."""
    shapes: list[TensorType] = []
    for op in module.walk():
        values: list[SSAValue] = list(op.results)
        values += [arg for region in op.regions for block in region.blocks for arg in block.args]
        shapes += [v.type for v in values if isinstance(v.type, TensorType)]
    dims = [dim for kind in shapes for dim in kind.shape]
    return frozenset(name for dim in dims if isinstance(dim, Size) for name in dim.names())


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
