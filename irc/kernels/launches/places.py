"""Where the values of a function lie: each in a contiguous tensor, behind a view of it."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue

from irc.dialects.flow import carry
from irc.dialects.launches import ViewOp
from irc.dialects.noted import noted_placements, result_id
from irc.kernels.holds import shape_of
from irc.kernels.trace import Stored
from irc.kernels.view import View, contiguous_strides


class Places:
    """What is known of the values of one function, and the place where new ops go.

    Attributes:
        views: the tensor that holds a value, and where in it; a value not here is such a tensor.
        written: the view op of a value, where one was needed.
        spread: tensors that images of convolutions are stored in, or may be: channels last.
        at: the op that is being rewritten, before which new ones go.
    """

    def __init__(self) -> None:
        self.views: dict[SSAValue, Stored] = {}
        self.written: dict[SSAValue, SSAValue] = {}
        self.spread: set[SSAValue] = set()
        self.at: Operation | None = None

    def stored(self, value: SSAValue) -> Stored:
        """Return the contiguous tensor that holds a value, and where in it."""
        if value not in self.views:
            self.views[value] = (value, View.contiguous(shape_of(value)))
        return self.views[value]

    def view(self, value: SSAValue, root: SSAValue, view: View) -> SSAValue:
        """Return the view op that gives a value as the program names it; it is made once."""
        if value not in self.written:
            strides = contiguous_strides(shape_of(value)) if view.is_dense else view.strides
            assert strides is not None
            op = ViewOp.make([root], [value.type], offset=view.offset, strides=strides)
            if isinstance(value.owner, Operation):
                carry(op, value.owner)
                op.attributes["id"] = StringAttr(result_id(value))
                if (placed := noted_placements([value])) is not None:
                    op.attributes["sbp"] = placed
            self.insert(op)
            self.written[value] = op.outputs[0]
        return self.written[value]

    def insert(self, op: Operation) -> None:
        """Put a new op before the one that is being rewritten."""
        assert self.at is not None and self.at.parent is not None
        self.at.parent.insert_op_before(op, self.at)
