"""What matmuls on tensor cores share: what is multiplied, and where a thread's sums go."""

from __future__ import annotations

from irc.backends.cuda.epilogue import Epilogue
from irc.backends.cuda.split import store_part
from irc.kernels.form import Form
from irc.kernels.source import Source


class Sums:
    """A matmul whose threads hold neighbouring pairs of its sums.

    Attributes:
        parts: among how many blocks the reduction of one tile is divided.
    """

    parts: int

    def __init__(self, form: Form) -> None:
        self.form = form
        (self.contract,) = (s for s in form.steps if s.kind == "contract")
        self.dtype = self.contract.operand_dtypes[0]
        self.m_dim, self.n_dim = form.num_parallel - 2, form.num_parallel - 1
        self.epilogue = Epilogue(form, 2)

    def finish(self, source: Source, batch: dict[int, str], values: list[str]) -> None:
        """Append what becomes of the sums at ``m``, ``n`` and the next: a part, or the result."""
        if self.parts > 1:
            store_part(source, self.form, values)
        else:
            self.epilogue.emit(source, batch, values)
