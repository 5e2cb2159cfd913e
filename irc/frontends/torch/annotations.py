"""`irc.place`: placements that a module's own code asks for.

JAX calls this ``with_sharding_constraint``, GSPMD (arXiv:2105.04663, section 3) ``mesh_split``.
"""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from xdsl.ir import SSAValue

from irc.constraints.pins import parse_pattern
from irc.dialects.flow import ReshapeOp, tensor
from irc.frontends.torch.lowering import Lowering, lowers
from irc.ops import names

ANNOTATION = "irc_placement"


def place(x: torch.Tensor, placement: str) -> torch.Tensor:
    """Ask for a placement of a tensor; the plan is the best among those that grant it.

    In a ``forward`` it pins the value: ``h = irc.place(h, "[tensor = S(1)]")``. Of a parameter or
    buffer outside it pins how ranks store it: ``irc.place(self.up.weight, "[tensor = S(0)]")``. A
    constraint file's pin of the same priority comes later and so holds instead. On one device, and
    in eager PyTorch, it does nothing.

    Args:
        x: any shape and dtype.
        placement: as in a constraint file; axes that it leaves out are free. Its axes must be
            those of the mesh when a plan is made.

    Returns:
        ``x``.

    Raises:
        IrcError: ``placement-syntax``.
    """
    if torch.compiler.is_compiling() or get_proxy_mode() is not None:
        # Read when it is translated: Dynamo, which traces this function, would break the graph.
        return torch.ops.irc.place(x, placement)
    parse_pattern(placement)
    setattr(x, ANNOTATION, placement)
    return x


@torch.library.custom_op(names.PLACE, mutates_args=())
def _place(x: torch.Tensor, placement: str) -> torch.Tensor:
    return x.clone()


@_place.register_fake  # pyright: ignore[reportUnknownMemberType]
def _(x: torch.Tensor, placement: str) -> torch.Tensor:
    return torch.empty_like(x)


def _setup(ctx: object, inputs: object, output: object) -> None:
    """Keep nothing: the gradient is the gradient."""


def _gradient(_ctx: object, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return grad, None


_place.register_autograd(_gradient, setup_context=_setup)  # pyright: ignore[reportUnknownMemberType]


@lowers(names.PLACE)
def _lowered(t: Lowering, x: SSAValue, placement: str) -> SSAValue:
    parse_pattern(placement)
    return t.b.op(ReshapeOp, [x], result=tensor(x), pin=placement)
