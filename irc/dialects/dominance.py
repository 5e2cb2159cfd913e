"""That every value is computed before it is read: what xDSL's own verifier leaves out.

A text may name a value before the line that makes it, and a pass may move an op up: both parse and
verify by themselves.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException


def verify_module(module: ModuleOp) -> None:
    """Verify each op, and that it reads only values that stand before it. One walk.

    Raises:
        VerifyException: naming the op and the operand.
        ValueError: xDSL's, for a value that was erased while an op still reads it.
    """
    module.verify()
    for region in module.regions:
        for block in region.blocks:
            _verify_block(block, set())


def _verify_block(block: Block, visible: set[SSAValue]) -> None:
    """Check a block in which the values of the blocks around it are visible; leave them as is."""
    defined: list[SSAValue] = [*block.args]
    visible.update(defined)
    for op in block.ops:
        for index, value in enumerate(op.operands):
            if value not in visible:
                raise VerifyException(f"operand {index} of {_show(op)} is {_state(value, op)}")
        for region in op.regions:
            for inner in region.blocks:
                _verify_block(inner, visible)
        defined += op.results
        visible.update(op.results)
    visible.difference_update(defined)


def _show(op: Operation) -> str:
    named = op.attributes.get("id")
    return op.name if named is None else f"{op.name} {{id = {named}}}"


def _state(value: SSAValue, reader: Operation) -> str:
    owner = value.owner
    if isinstance(owner, Operation) and owner.parent is reader.parent:
        return f"the result of {_show(owner)}, which stands after it"
    return "a value that cannot be seen from there"
