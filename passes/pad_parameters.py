"""Pass ``pad-parameters``: what ranks are to store in equal parts, and do not share equally."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.constraints.layouts import TENSOR, parse_layout
from irc.constraints.padding import pad_pinned
from irc.constraints.pins import constraint_text
from irc.constraints.uses import placed_statements
from irc.dialects.builder import arguments, entry
from irc.dialects.flow import tensor
from irc.dialects.placement import Mesh
from irc.sharding.mesh import parse_mesh
from irc.sharding.padded_classes import is_vocabulary, use_padding
from irc.sharding.padding import is_front, names_of_padded, pad_argument, padded_rows


@dataclass(frozen=True)
class PadParametersPass(ModulePass):
    """Store parameters with more rows where the ranks of an axis do not share theirs equally.

    Under ``fsdp`` a rank is to store its part of each parameter. Of 3 ranks none stores a third of
    a matrix of 128 x 512; of 129 x 512 each does. The row more is zero, and so are its gradient and
    the optimiser's states of it. What a rank holds of the parameter itself is the ceil-sized chunk
    that torch's FSDP gives it: checkpoints and DTensors know nothing of the padding.

    Options: ``mesh`` and ``layout`` as auto-shard has them: where the layout stores parameters in
    parts, they are padded for its axes of samples; with ``short`` memory is bounded, and they are
    padded for all axes, or for the largest that they can be. ``pins`` as auto-shard has them: a pin
    that splits the rows of a parameter unevenly pads it, too, unless it says ``equal``.

    Where a layout splits matrices, a vocabulary is padded for these axes: what embeddings look up,
    and what makes the logits of a cross-entropy. Ranks then have their parts of the classes, and a
    bias keeps those that are padding out of the softmax (:mod:`irc.sharding.padded_classes`). So it
    is with a pin that splits the rows of a vocabulary over an axis for matrices.

    Run: pad-parameters{mesh="data=2" layout=fsdp}

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4, 3], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[5, 3], f32> {role = "parameter", name = "w"})
        -> !flow.tensor<[4, 5], f32> {
      %y = flow.contract(%x, %w) {spec = "bk,nk->bn", loc = "m.py:3", id = "n2"}
          : (!flow.tensor<[4, 3], f32>, !flow.tensor<[5, 3], f32>) -> !flow.tensor<[4, 5], f32>
      func.return %y : !flow.tensor<[4, 5], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[4, 3], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[6, 3], f32> {role = "parameter", name = "w", rows = 5 : i64})
        -> !flow.tensor<[4, 5], f32> {
      %0 = flow.slice(%w) {starts = array<i64: 0, 0>, stops = array<i64: 5, 3>,
          steps = array<i64: 1, 1>, loc = "m.py:3", id = "pad1.front"}
          : (!flow.tensor<[6, 3], f32>) -> !flow.tensor<[5, 3], f32>
      %y = flow.contract(%x, %0) {spec = "bk,nk->bn", loc = "m.py:3", id = "n2"}
          : (!flow.tensor<[4, 3], f32>, !flow.tensor<[5, 3], f32>) -> !flow.tensor<[4, 5], f32>
      func.return %y : !flow.tensor<[4, 5], f32>
    }
    ```

    It leaves a parameter of which some dim is divided equally, one with fewer rows than ranks, and
    one whose gradient the program has already: it stands before ``differentiate``.
    """

    name = "pad-parameters"
    level: ClassVar[str] = "flow"

    mesh: str = ""
    layout: str = ""
    pins: str = ""
    short: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Pad the parameters of the entry."""
        mesh = parse_mesh(self.mesh)
        statements = placed_statements(op, mesh, *constraint_text(self.pins))
        pinned = pad_pinned(op, mesh, statements)
        axes, matrices = self._axes(mesh), self._matrices(mesh)
        func = entry(op)
        padded = names_of_padded(func)
        for number, (role, name, value) in enumerate(arguments(func)):
            shape = tensor(value).static_shape() if role == "parameter" else ()
            if name in padded and set(pinned.get(name, ())) & {*TENSOR}:
                use_padding(func, number)
            if not shape or name in pinned:
                continue
            stored = _stored_rows(shape[:1], matrices)
            if stored > shape[0] and is_vocabulary(func, number):
                pad_argument(func, number, stored)
                use_padding(func, number)
            elif (stored := _stored_rows(shape, axes)) > shape[0]:
                pad_argument(func, number, stored)

    def _matrices(self, mesh: Mesh) -> list[list[int]]:
        """Return the sizes of the axes that split matrices."""
        layout = parse_layout(self.layout, mesh)
        sizes = [mesh.size(axis) for axis in layout.matrices if mesh.size(axis) > 1]
        return [sizes] if sizes else []

    def _axes(self, mesh: Mesh) -> list[list[int]]:
        """Return the sizes of axes that are to split parameters; of several such, the first."""
        layout = parse_layout(self.layout, mesh)
        sizes = [size for _, size in mesh.axes if size > 1]
        if layout.is_stored_split:
            return [[mesh.size(axis) for axis in layout.samples if mesh.size(axis) > 1]]
        return [sizes, *([size] for size in sorted(sizes, reverse=True))] if self.short else []


def _stored_rows(shape: tuple[int, ...], axes: Sequence[Sequence[int]]) -> int:
    """Return the rows of which ranks store as many each; those that there are where none need be.

    >>> _stored_rows((5, 3), [[2]]), _stored_rows((5, 4), [[2]]), _stored_rows((1, 3), [[2]])
    (6, 5, 1)
    """
    rows = shape[0]
    for parts in axes:
        count = prod(parts)
        if any(size % count == 0 for size in shape):
            return rows
        stored = padded_rows(rows, parts)
        if rows >= count and is_front(rows, stored, parts):
            return stored
    return rows
