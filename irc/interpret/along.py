"""``task.along`` on tasks as the mapping gives them: rows from addresses, torch along them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from irc.dialects.along import AlongForm, KernelAlongOp, Place
from irc.dialects.indexing import ScatterOp
from irc.dialects.scans import CumulativeOp
from irc.interpret.role_memory import RoleMemory
from irc.runtime import library
from irc.runtime.index_bounds import index_outside

if TYPE_CHECKING:
    import torch


def run_along(
    op: KernelAlongOp,
    tasks: torch.Tensor,
    buffers: Sequence[torch.Tensor],
    counts: Sequence[torch.Tensor],
    dtype: torch.dtype | None,
) -> None:
    """Run the kernel of a ``task.along`` for some tasks.

    Args:
        op: the body of the kernel.
        tasks: [tasks, parallel dims], inside the space.
        buffers: flat, inputs then outputs.
        counts: one per output; counts the stores to each element.
        dtype: compute floats in it; None means their own.

    Raises:
        InternalError: where an address lies outside its buffer.
        IrcError: ``index-out-of-range``.
    """
    _Rows(op, tasks, buffers, counts, dtype).run()


class _Rows:
    """Some tasks: each role is [tasks, count]."""

    def __init__(
        self,
        op: KernelAlongOp,
        tasks: torch.Tensor,
        buffers: Sequence[torch.Tensor],
        counts: Sequence[torch.Tensor],
        dtype: torch.dtype | None,
    ) -> None:
        self.form: AlongForm = op.form
        self.memory = RoleMemory(op, buffers, counts, dtype)
        self.tasks = tasks

    def run(self) -> None:
        """Compute and store y and the positions of all tasks."""
        match self.form.fn:
            case "scan":
                results = self._scan()
            case "sort":
                results = self._sort()
            case _:
                results = [self._scatter()]
        for role, value in zip(("y", "at"), results, strict=False):
            if role in self.form.places:
                self._store(role, value)

    def _scan(self) -> list[torch.Tensor]:
        import torch

        form, x = self.form, self._read("x")
        if "at" in form.places or form.mode == "logaddexp":
            x = x.flip(1) if form.reverse else x
            fns = {"max": torch.cummax, "min": torch.cummin}
            if form.mode in fns:
                return list(fns[form.mode](x, 1))
            return [torch.logcumsumexp(x, 1)]
        attrs = {
            "fn": form.mode, "dim": 1, "exclusive": form.exclusive, "reverse": form.reverse,
        }  # fmt: skip
        return library.run(CumulativeOp.name, attrs, [x], [])

    def _sort(self) -> list[torch.Tensor]:
        import torch

        x, count = self._read("x"), self.form.places["y"].count
        ordered = torch.sort(x, dim=1, descending=self.form.mode == "descending", stable=True)
        return [part[:, :count] for part in ordered]

    def _scatter(self) -> torch.Tensor:
        import torch

        form, source, index = self.form, self._read("source"), self._read("index").long()
        count = form.places["y"].count
        if "x" in form.places:
            x = self._read("x")
        else:
            x = torch.full((len(self.tasks), count), form.fill, dtype=source.dtype)
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < count:
            raise index_outside(
                f"an index lies outside the {count} elements that kernel @{self.memory.name}"
                " writes to"
            )
        attrs = {"fn": form.mode, "dim": 1}
        return library.run(ScatterOp.name, attrs, [x, index, source], [])[0]

    def _address(self, place: Place) -> torch.Tensor:
        """[tasks, count] of element numbers."""
        import torch

        outer = (self.tasks * torch.tensor(place.strides[:-1], dtype=torch.int64)).sum(1)
        along = torch.arange(place.count) * place.strides[-1]
        return outer[:, None] + along + place.offset

    def _read(self, role: str) -> torch.Tensor:
        place = self.form.places[role]
        return self.memory.read(place.buffer, self._address(place), place.dtype)

    def _store(self, role: str, value: torch.Tensor) -> None:
        place = self.form.places[role]
        self.memory.store(place.buffer, self._address(place), value)
