"""``task.recurrent`` on tasks as the mapping gives them: a row of a direction at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from irc.dialects.recurrent import KernelRecurrentOp
from irc.dialects.size import value_of
from irc.interpret.role_memory import RoleMemory
from irc.ops.recurrent import QUAD, UNIT, columns

if TYPE_CHECKING:
    import torch


def run_recurrent(
    op: KernelRecurrentOp,
    tasks: torch.Tensor,
    buffers: Sequence[torch.Tensor],
    counts: Sequence[torch.Tensor],
    dtype: torch.dtype | None,
) -> None:
    """Run the kernel of a ``task.recurrent`` for some tasks.

    Args:
        op: the body of the kernel.
        tasks: [tasks, 2], a direction and a row each, inside the space.
        buffers: flat, inputs then outputs.
        counts: one per output; counts the stores to each element.
        dtype: compute floats in it; None means their own.

    Raises:
        InternalError: where an address lies outside its buffer.
    """
    rows = _Rows(op, buffers, counts, dtype)
    for task in tasks:
        rows.run(int(task[0]), int(task[1]))


@dataclass(frozen=True)
class _Rounded:
    """Numbers rounded to bytes by a range: ``(byte - zero) * step``; ``values`` are less zero."""

    values: torch.Tensor
    step: torch.Tensor

    @staticmethod
    def of(x: torch.Tensor, whole: torch.Tensor | None = None) -> _Rounded:
        """Round by the range of ``whole``, or of x itself, in float32 as kernels do."""
        import torch

        x, every = x.float(), (x if whole is None else whole).float()
        low, high = torch.aminmax(torch.cat([every.reshape(-1), torch.zeros(1)]))
        step = (high - low) / 255 if high > low else torch.ones(())
        zero = (-low / step).clamp(0, 255).round()
        return _Rounded(((x / step).round() + zero).clamp(0, 255) - zero, step)


class _Rows:
    """Rows of a batch by themselves."""

    def __init__(
        self,
        op: KernelRecurrentOp,
        buffers: Sequence[torch.Tensor],
        counts: Sequence[torch.Tensor],
        dtype: torch.dtype | None,
    ) -> None:
        self.form = op.form
        self.steps, self.batch = (value_of(n, {}) for n in (self.form.steps, self.form.batch))
        self.memory = RoleMemory(op, buffers, counts, dtype)
        self.every = self._every_input() if self.form.in_bytes else None

    def _every_input(self) -> torch.Tensor:
        """Return all inputs up to the end of the longest sequence."""
        import torch

        form, steps = self.form, self.steps
        if "lengths" in form.buffers:
            lengths = self._read("lengths", torch.arange(self.batch), "i32")
            steps = min(max(int(lengths.max()), 0), steps)
        of_steps, of_rows = (value_of(n, {}) for n in form.strides)
        place = torch.arange(steps)[:, None] * of_steps + torch.arange(self.batch) * of_rows
        first = value_of(form.offset, {})
        return self._read("x", place[..., None] + torch.arange(form.inputs) + first)

    def run(self, d: int, row: int) -> None:
        """Compute and store the states of a row in a direction."""
        import torch

        form, hidden = self.form, self.form.hidden
        steps = self.steps
        if "lengths" in form.buffers:
            length = int(self._read("lengths", torch.tensor([row]), "i32"))
            steps = min(max(length, 0), steps)
        self.d = d
        self._load_weights(d)
        state = torch.arange(hidden) + (d * self.batch + row) * hidden
        zero = torch.zeros(hidden, dtype=self.w.dtype)
        h = self._read("h", state) if "h" in form.buffers else zero
        c = self._read("c", state) if "c" in form.buffers else zero
        back = form.backwards if form.directions == 1 else d == 1
        order = range(steps)
        per_step = form.directions * self.batch * hidden
        for t in (*(reversed(order) if back else order), *range(steps, self.steps)):
            if t < steps:
                place = form.offset + form.strides[0] * t + form.strides[1] * row
                x = self._read("x", torch.arange(form.inputs) + value_of(place, {}))
                h, c = self._step(x, h, c)
            self._store("y", state + t * per_step, h if t < steps else zero)
        self._store("last", state, h)
        if form.kind == "LSTM":
            self._store("last_cell", state, c)

    def _load_weights(self, d: int) -> None:
        """Read a direction's weights as they were before they were packed, units in rows."""
        form, hidden, whole = self.form, self.form.hidden, self.form.padded
        self.added = self._weight("added", d).reshape(form.gates, whole)[:, :hidden]
        if form.in_bytes:
            w = self._weight("w", d).reshape(form.gates, whole // UNIT, -1, UNIT, QUAD)
            w = w.transpose(2, 3).reshape(form.gates, whole, -1)
            r = self._weight("r", d).reshape(whole // UNIT, form.gates, -1, UNIT, QUAD)
            r = r.permute(1, 0, 3, 2, 4).reshape(form.gates, whole, -1)
            self.w, self.r = (
                v[:, :hidden, :size].to(self.added.dtype) - self._columns(f"{role}_zeros", d)
                for role, v, size in (("w", w, form.inputs), ("r", r, hidden))
            )
            return
        width = columns(form.kind, hidden)
        w = self._weight("w", d).reshape(-1, form.inputs, width).transpose(1, 2)
        r = self._weight("r", d).reshape(whole // UNIT, form.gates, -1, UNIT)
        r = r.permute(1, 0, 3, 2).reshape(form.gates, whole, -1)
        self.w = w.reshape(form.gates, whole, form.inputs)[:, :hidden]
        self.r = r[:, :hidden, :hidden]
        self.inner = self.added.new_zeros(hidden)
        if "inner" in form.buffers:
            self.inner = self._weight("inner", d)[:hidden]

    def _step(
        self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the state and the cell after a step."""
        import torch

        form = self.form
        gate, *more = (getattr(torch, name) for name in form.activations)
        p, products = self._product("w", x) + self.added, self._product("r", h)
        match form.kind:
            case "RNN":
                return gate(p[0] + products[0]), c
            case "LSTM":
                i, o, f = (gate(p[g] + products[g]) for g in range(3))
                c = f * c + i * more[0](p[3] + products[3])
                return o * more[1](c), c
            case _:
                z, r = (gate(p[g] + products[g]) for g in range(2))
                inner = r * (products[2] + self.inner)
                if form.kind == "GRU before":
                    inner = self.r[2] @ (r * h)
                n = more[0](p[2] + inner)
                return (1 - z) * n + z * h, c

    def _product(self, role: str, x: torch.Tensor) -> torch.Tensor:
        """Return the products of an input (``w``) or a state (``r``)."""
        weight = self.w if role == "w" else self.r
        if not self.form.in_bytes:
            return weight @ x
        rounded = _Rounded.of(x, self.every if role == "w" else None)
        scale = self._columns(f"{role}_scale", self.d)[..., 0]
        return (weight @ rounded.values.to(weight.dtype)) * (rounded.step * scale)

    def _columns(self, role: str, d: int) -> torch.Tensor:
        """Return what a weight of 8 bits has of each column, [gates, hidden, 1]."""
        form = self.form
        return self._weight(role, d).reshape(form.gates, form.padded, 1)[:, : form.hidden]

    def _weight(self, role: str, d: int) -> torch.Tensor:
        import torch

        size = prod(value_of(n, {}) for n in self.form.shape(role)[1:])
        return self._read(role, torch.arange(size) + d * size, self.form.dtype(role))

    def _read(self, role: str, address: torch.Tensor, dtype: str = "f32") -> torch.Tensor:
        return self.memory.read(self.form.buffers[role], address, dtype)

    def _store(self, role: str, address: torch.Tensor, value: torch.Tensor) -> None:
        self.memory.store(self.form.buffers[role], address, value)
