"""``task.attention`` on tasks as the mapping gives them: row by row from addresses and strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from irc.dialects.attention import DEPTH, PER_KEY, WIDTH, AttentionForm, KernelAttentionOp
from irc.interpret.role_memory import RoleMemory

if TYPE_CHECKING:
    import torch

ELEMENTS = 1 << 22
"""So many elements of keys are held at once, [tasks, keys, features]."""


def run_attention(
    op: KernelAttentionOp,
    tasks: torch.Tensor,
    buffers: Sequence[torch.Tensor],
    counts: Sequence[torch.Tensor],
    dtype: torch.dtype | None,
) -> None:
    """Run an attention kernel for some tasks.

    Args:
        op: the body of the kernel.
        tasks: [tasks, parallel dims], inside the space.
        buffers: flat, inputs then outputs.
        counts: one per output; counts the stores to each element.
        dtype: compute in it; None means float32.

    Raises:
        InternalError: where an address lies outside its buffer.
    """
    form = op.form
    size = max(1, ELEMENTS // (form.chunk * max(form.depth, form.width)))
    for start in range(0, len(tasks), size):
        _Rows(op, tasks[start : start + size], buffers, counts, dtype).run()


class _Rows:
    """Some tasks: index vectors by dim of the space, the last being all keys."""

    def __init__(
        self,
        op: KernelAttentionOp,
        tasks: torch.Tensor,
        buffers: Sequence[torch.Tensor],
        counts: Sequence[torch.Tensor],
        dtype: torch.dtype | None,
    ) -> None:
        import torch

        self.form: AttentionForm = op.form
        self.memory = RoleMemory(op, buffers, counts, dtype or torch.float32)
        self.tasks = tasks
        self.keys = torch.arange(self.form.chunk)
        # Global numbers of the keys of each task's part, [tasks, chunk]; some of the last miss.
        self.at = tasks[:, -1:] * self.form.chunk + self.keys
        self.exists = self.at < self.form.keys

    def run(self) -> None:
        """Compute and store y and the log-sums of all tasks."""
        import torch

        scores = self._scores()
        top = scores.amax(-1, keepdim=True)
        top = top.masked_fill(top == -torch.inf, 0.0)
        powers = torch.exp(scores - top)
        total = powers.sum(-1, keepdim=True)
        values = self._read("v", per_key=True).masked_fill(~self.exists[..., None], 0.0)
        y = (powers[..., None] * values).sum(1) / total.masked_fill(total == 0.0, 1.0)
        sums = (top + total.log())[:, 0]
        if "y0" in self.form.places:
            before, old = self._read("sums0")[:, 0], self._read("y0")
            joined = torch.logaddexp(before, sums)
            safe = joined.masked_fill(joined == -torch.inf, 0.0)
            y = torch.exp(before - safe)[:, None] * old + torch.exp(sums - safe)[:, None] * y
            sums = joined
        self._store("y", y)
        if "sums" in self.form.places:
            self._store("sums", sums[:, None])

    def _scores(self) -> torch.Tensor:
        """[tasks, chunk], minus infinity where a key does not take part."""
        import torch

        form = self.form
        q, k = self._read("q"), self._read("k", per_key=True)
        scores = (q[:, None, :] * k).sum(-1) * form.scale
        seen = self.exists
        if form.causal:
            start = self._read("start")[:, 0].long() if "start" in form.places else 0
            rows = self.tasks[:, -2] + start
            seen = seen & (rows[:, None] >= self.at)
        if "mask" in form.places:
            mask = self._read("mask", per_key=True)[..., 0]
            if form.places["mask"].dtype == "i1":
                seen = seen & mask.bool()
            else:
                scores = scores + mask
        return scores.masked_fill(~seen, -torch.inf)

    def _address(self, role: str, *, per_key: bool = False) -> torch.Tensor:
        """[tasks, features], or [tasks, chunk, features]; missing keys are those of the first."""
        import torch

        place, form = self.form.places[role], self.form
        count = form.depth if role in DEPTH else form.width if role in WIDTH else 1
        strides = torch.tensor(place.strides[:-1], dtype=torch.int64)
        features = torch.arange(count) * place.feature
        if role in PER_KEY:
            strides[-1] = 0
        rows = (self.tasks * strides).sum(1) + place.offset
        if not per_key:
            return rows[:, None] + features
        keys = torch.where(self.exists, self.at, 0) * place.strides[-1]
        return rows[:, None, None] + keys[..., None] + features

    def _read(self, role: str, *, per_key: bool = False) -> torch.Tensor:
        place = self.form.places[role]
        return self.memory.read(place.buffer, self._address(role, per_key=per_key), place.dtype)

    def _store(self, role: str, value: torch.Tensor) -> None:
        self.memory.store(self.form.places[role].buffer, self._address(role), value)
