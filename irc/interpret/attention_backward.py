"""``task.attention_backward`` on tasks as the mapping gives them: a head at a time, by address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from irc.dialects.attention import DEPTH, PER_KEY, WIDTH, AttentionForm
from irc.dialects.attention_backward import BEFORE, OUTPUTS, KernelAttentionBackwardOp
from irc.interpret.role_memory import RoleMemory

if TYPE_CHECKING:
    import torch


def run_attention_backward(
    op: KernelAttentionBackwardOp,
    tasks: torch.Tensor,
    buffers: Sequence[torch.Tensor],
    counts: Sequence[torch.Tensor],
    dtype: torch.dtype | None,
) -> None:
    """Run a kernel of attention's gradients for some tasks.

    Args:
        op: the body of the kernel.
        tasks: [tasks, lead dims and G], inside the space.
        buffers: flat, inputs then outputs.
        counts: one per output; counts the stores to each element.
        dtype: compute in it; None means float32.

    Raises:
        InternalError: where an address lies outside its buffer.
    """
    for index in range(len(tasks)):
        task = [int(i) for i in tasks[index]]
        for part in range(op.form.parts):
            _Part(op, task, part, buffers, counts, dtype).run()


class _Part:
    """One part of the keys of one head: scores are [R, S, C]."""

    def __init__(
        self,
        op: KernelAttentionBackwardOp,
        task: list[int],
        part: int,
        buffers: Sequence[torch.Tensor],
        counts: Sequence[torch.Tensor],
        dtype: torch.dtype | None,
    ) -> None:
        import torch

        self.form: AttentionForm = op.form
        self.memory = RoleMemory(op, buffers, counts, dtype or torch.float32)
        self.task, self.part = task, part
        first = part * self.form.chunk
        self.keys = torch.arange(first, min(first + self.form.chunk, self.form.keys))

    def run(self) -> None:
        """Compute and store the gradients of a part."""
        import torch

        form = self.form
        g, q, k, v = (self._read(role) for role in ("g", "q", "k", "v"))
        sums = self._read("sums")
        powers = torch.exp(self._scores(q, k) - sums.masked_fill(sums == -torch.inf, torch.inf))
        slopes = powers * (torch.einsum("rse,te->rst", g, v) - self._read("delta")) * form.scale
        gradients = {
            "dq": torch.einsum("rst,td->rsd", slopes, k),
            "dk": torch.einsum("rst,rsd->td", slopes, q),
            "dv": torch.einsum("rst,rse->te", powers, g),
        }
        for role in OUTPUTS:
            if role in form.places:
                added = self._read(BEFORE[role]) if BEFORE[role] in form.places else 0.0
                self._store(role, gradients[role] + added)

    def _scores(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """[R, S, C], minus infinity where a key does not take part."""
        import torch

        form = self.form
        scores = torch.einsum("rsd,td->rst", q, k) * form.scale
        if "mask" in form.places:
            mask = self._read("mask")
            if form.places["mask"].dtype == "i1":
                scores = scores.masked_fill(~mask.bool(), -torch.inf)
            else:
                scores = scores + mask
        if form.causal:
            start = int(self._read("start").reshape(-1)[0]) if "start" in form.places else 0
            rows = torch.arange(form.rows)[:, None] + start
            scores = scores.masked_fill(rows < self.keys, -torch.inf)
        return scores

    def _address(self, role: str) -> torch.Tensor:
        """[R, S, 1 or features] of what lies by rows, [C, features] by keys, [R, S, C] of masks."""
        import torch

        place, form = self.form.places[role], self.form
        lead = zip(place.strides, self.task, strict=False)
        at = torch.tensor(place.offset + sum(s * i for s, i in lead))
        repeat, row, part, key = place.strides[-4:]
        features = form.depth if role in DEPTH else form.width if role in WIDTH else 1
        along = torch.arange(features) * place.feature
        columns = self.keys * key
        if role in PER_KEY and role != "mask":
            return at + columns[:, None] + along
        rows = torch.arange(form.repeats)[:, None] * repeat + torch.arange(form.rows) * row
        if role == "mask":
            return at + rows[..., None] + columns
        return at + rows[..., None] + (self.part * part if role in OUTPUTS else 0) + along

    def _read(self, role: str) -> torch.Tensor:
        place = self.form.places[role]
        return self.memory.read(place.buffer, self._address(role), place.dtype)

    def _store(self, role: str, value: torch.Tensor) -> None:
        self.memory.store(self.form.places[role].buffer, self._address(role), value)
