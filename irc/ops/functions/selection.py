"""Choice, copies and conversion."""

from __future__ import annotations

from irc.ops.functions.record import Pointwise, Text

FUNCTIONS = (
    Pointwise(
        "where",
        arity=3,
        linear=((1, 2),),
        complex=True,
        derivative=(
            None,
            lambda v: v.g.where(v.a, 0),
            lambda v: v.g.where(v.a.of("logical_not"), 0),
        ),
        triton=Text(
            floats="tl.where({0}, {1}, {2})",
            integers="tl.where({0}, {1}, {2})",
            bools="tl.where({0}, {1}, {2})",
        ),
        cuda=Text(floats="{0} ? {1} : {2}", integers="{0} ? {1} : {2}", bools="{0} ? {1} : {2}"),
    ),
    Pointwise(
        "copy",
        aten="clone",
        linear=((0,),),
        monotone=True,
        complex=True,
        flops=0,
        derivative=(lambda v: v.g,),
        triton=Text(floats="{0}", integers="{0}", bools="{0}"),
        cuda=Text(floats="{0}", integers="{0}", bools="{0}"),
    ),
    Pointwise(
        "detach",
        aten="clone",
        linear=((0,),),
        monotone=True,
        complex=True,
        flops=0,
        flat=True,
        triton=Text(floats="{0}", integers="{0}", bools="{0}"),
        cuda=Text(floats="{0}", integers="{0}", bools="{0}"),
    ),
    Pointwise(
        # The second operand, with gradients as if it were the first: what a write that is not
        # recorded leaves. Nothing has it once a program is differentiated.
        "written",
        arity=2,
        aten="copy",
        complex=True,
        flops=0,
        derivative=(lambda v: v.g, None),
        triton=Text(floats="{1}", integers="{1}", bools="{1}"),
        cuda=Text(floats="{1}", integers="{1}", bools="{1}"),
    ),
    Pointwise(
        "cast",
        aten="to",
        result="type",
        complex=True,
        flops=0,
    ),
)
