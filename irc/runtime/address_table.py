"""Tables of addresses on a device: how a kernel finds the buffers of many tensors.

A launch takes a few arguments; a kernel that updates all parameters of a model has a thousand
buffers, so it reads where they are from memory of the device. A table is made when its addresses
first come; weights and the arena stay where they are, so that is once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import torch

from irc.errors import IrcError
from irc.runtime.graph import hold

MAX_TABLES = 16
"""Tables of a kernel that are kept, those used last; a CUDA graph keeps the one that it reads."""


class AddressTables:
    """The tables of one kernel.

    Args:
        head: what stands before the addresses.
        device: where the tables lie.
    """

    def __init__(self, head: Sequence[int], device: torch.device | str) -> None:
        self._head, self.device = tuple(head), torch.device(device)
        self._known: OrderedDict[tuple[int, ...], torch.Tensor] = OrderedDict()
        self._turn = threading.Lock()

    def at(self, addresses: Sequence[int]) -> int:
        """Return where the table of some addresses lies, for a launch that follows at once.

        Raises:
            IrcError: ``device-failed`` where a CUDA graph that the caller records is the first to
                use these addresses.
        """
        key = tuple(addresses)
        with self._turn:
            table = self._known.get(key)
            if table is None:
                self._refuse_recording()
                words = [*self._head, *key]
                table = torch.tensor(words, dtype=torch.int64).to(self.device)
                self._known[key] = table
                if len(self._known) > MAX_TABLES:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
        hold(table)
        return table.data_ptr()

    def _refuse_recording(self) -> None:
        # Memory copied from the host while a graph is recorded would be copied at each replay.
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise IrcError(
                "device-failed",
                "a CUDA graph is recorded of a compiled call whose addresses are new",
                because="the addresses of its tensors go to the device once, before a recording",
                help="make the same call on the same tensors once before torch.cuda.graph",
            )
