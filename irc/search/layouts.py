"""What a layout allows: how values lie between ops, and which signatures ops may have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from xdsl.dialects.func import CallOp
from xdsl.ir import SSAValue

from irc.constraints.layouts import Layout
from irc.dialects.builder import arguments
from irc.dialects.flow import ContractOp, FlowOp, phase_of, tensor
from irc.dialects.placement import AxisPlacement, B, Mesh, Partial, Placement, Split
from irc.dialects.types import TensorType, is_float
from irc.dialects.windows import ConvolutionOp
from irc.errors import IrcError
from irc.search.facts import Facts
from irc.sharding.mesh import equal_shares
from irc.sharding.signatures import NdSignature
from irc.training.stages import GRADIENT


class LayoutRules:
    """A layout where it meets a module and a mesh.

    Args:
        layout: what the axes are for.
        facts: of the module.
        mesh: of the search, which may have some of the layout's axes only.
    """

    def __init__(self, layout: Layout, facts: Facts, mesh: Mesh) -> None:
        own = [axis for axis, size in mesh.axes if size > 1]
        self.samples = [axis for axis in layout.samples if axis in own]
        self._matrices = [axis for axis in layout.matrices if axis in own]
        self._layout, self._mesh = layout, mesh
        func = facts.functions["forward"]
        self._held = _held(facts) if self.samples or self._matrices else set[SSAValue]()
        inputs = [(name, value) for role, name, value in arguments(func) if role == "input"]
        first = (
            tensor(value).static_shape()
            for name, value in inputs
            if isinstance(value.type, TensorType) and not name.startswith(GRADIENT)
        )
        # The batch is the first dim of the first input that has one.
        self._rows = next((shape[0] for shape in first if shape), 0)

    @property
    def gathers_again(self) -> bool:
        """Whether what is gathered of a parameter is dropped, and gathered again for backward."""
        return self._layout.is_stored_split

    def signatures(self, op: FlowOp, signatures: Sequence[NdSignature]) -> list[NdSignature]:
        """Return what is left of the signatures of an op; an optimizer's updates are free."""
        if phase_of(op) == "step":
            return list(signatures)
        left = list(signatures)
        held = [i for i, value in enumerate(op.inputs) if value in self._held]
        for axis in self.samples if held else ():
            left = _kept(left, lambda s, axis=axis: all(s.operands[i][axis] == B for i in held))
        if isinstance(op, ContractOp | ConvolutionOp):
            for axis in self._matrices if held else ():
                left = _kept(
                    left,
                    lambda s, axis=axis: all(isinstance(s.operands[i][axis], Split) for i in held),
                )
        elif self._layout.is_all_divided and any(_is_active(v, self._held) for v in op.inputs):
            for axis in self._matrices:
                left = _kept(left, lambda s, axis=axis: all(r[axis] != B for r in s.results))
        return left

    def argument(
        self, role: str, name: str, value: SSAValue, options: Sequence[Placement]
    ) -> tuple[Placement, ...]:
        """Return how an argument of the entry may lie.

        Raises:
            IrcError: ``mesh-axis-indivisible`` for an input whose samples the ranks do not share
                equally.
        """
        if role == "input" and self.samples:
            return self._input(name, value)
        if role != "parameter" or not self.samples:
            return tuple(options)
        if not self._layout.is_stored_split:
            return tuple(p for p in options if all(p[axis] == B for axis in self.samples))
        split = [p for p in options if self._is_split(p)]
        if not self._matrices and split:
            dim = min(self._dim(p) for p in split)
            split = [p for p in split if self._dim(p) == dim]
        return tuple(split or (p for p in options if all(p[axis] == B for axis in self.samples)))

    def gradient(
        self, placements: Sequence[Placement], produced: Iterable[Placement]
    ) -> list[Placement]:
        """Return how the gradient of a parameter is to lie, for each way in which that may lie.

        Args:
            placements: of the parameter.
            produced: of the gradient, as its op gives it.
        """
        sums = [all(p[axis] == Partial() for axis in self.samples) for p in produced]
        if not self.samples or not any(sums):
            return list(placements)
        return [self._partial(placement) or placement for placement in placements]

    def _partial(self, placement: Placement) -> Placement | None:
        """Return a placement as a sum over samples that is still to be made, where one can be."""
        axes: list[tuple[str, AxisPlacement]] = [
            (axis, Partial() if axis in self.samples else placed) for axis, placed in placement.axes
        ]
        try:
            return Placement(tuple(axes))
        except ValueError:
            return None

    def _input(self, name: str, value: SSAValue) -> tuple[Placement, ...]:
        whole = Placement.replicated(self._mesh.names)
        shape = tensor(value).static_shape() if isinstance(value.type, TensorType) else ()
        if not shape or shape[0] != self._rows:
            return (whole,)
        count = 1
        for axis in self.samples:
            count *= self._mesh.size(axis)
        if shape[0] % count:
            raise IrcError(
                "mesh-axis-indivisible",
                f"'{name}' has {shape[0]} samples for {count} ranks of {', '.join(self.samples)}",
                because="the layout divides samples, and each rank gets as many",
                help=f"{equal_shares(shape[0], count)}; or leave the last batch out: "
                "drop_last=True",
            )
        axes = tuple((axis, Split(0) if axis in self.samples else B) for axis in self._mesh.names)
        return (Placement.in_mesh_order(axes),)

    def _is_split(self, placement: Placement) -> bool:
        """True where all axes of samples split one dim, alone: a reduction can then lead there."""
        dims = [p.dim for axis in self.samples if isinstance(p := placement[axis], Split)]
        return (
            len(dims) == len(self.samples)
            and len(set(dims)) == 1
            and len(placement.split_axes(dims[0])) == len(dims)
        )

    def _dim(self, placement: Placement) -> int:
        placed = placement[self.samples[0]]
        assert isinstance(placed, Split)
        return placed.dim


def _held(facts: Facts) -> set[SSAValue]:
    """Return the parameters, in blocks too, and what is computed of them alone."""
    roles = {value: role for role, _, value in arguments(facts.functions["forward"])}
    passed: dict[SSAValue, list[SSAValue]] = {}
    for func in facts.functions.values():
        for op in func.body.block.ops:
            if isinstance(op, CallOp):
                callee = facts.functions[op.callee.string_value()]
                for argument, value in zip(callee.body.block.args, op.operands, strict=True):
                    passed.setdefault(argument, []).append(value)
    held = {value for value, role in roles.items() if role == "parameter"}
    # Callers come after callees, so what a block is given is known once they were looked at.
    for name in reversed(list(facts.functions)):
        block = facts.functions[name].body.block
        if name != "forward":
            held |= {a for a in block.args if a in passed and all(v in held for v in passed[a])}
        for op in block.ops:
            if isinstance(op, FlowOp) and op.inputs and all(v in held for v in op.inputs):
                held.update(op.outputs)
    return held


def _is_active(value: SSAValue, held: set[SSAValue]) -> bool:
    """True for what is computed of the samples, and large."""
    kind = value.type
    return (
        isinstance(kind, TensorType)
        and kind.ndim > 1
        and is_float(kind.dtype)
        and value not in held
    )


def _kept(signatures: list[NdSignature], fits: Callable[[NdSignature], bool]) -> list[NdSignature]:
    """Return those that fit, where there are any."""
    return [signature for signature in signatures if fits(signature)] or signatures
