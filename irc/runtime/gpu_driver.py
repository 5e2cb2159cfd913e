"""The driver of plans whose kernels run on a GPU.

Arena, weights and outputs are torch's memory on one device; kernels and torch's own ops go to
torch's current stream, so a call returns before the device has finished, as torch's own calls do.
Under ``TRITON_INTERPRET=1`` the device is the host and kernels run in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch

from irc.runtime.addresses import check_elements
from irc.runtime.device import device_of
from irc.runtime.local_weights import WeightCopy, version_of
from irc.runtime.prepared import Store
from irc.runtime.torch_driver import TorchDriver


class GpuDriver(TorchDriver):
    """Binds plans to tensors of one GPU.

    A weight that lies elsewhere is copied to the device, again when it was written to, and states
    are copied back.

    Args:
        backend: whose kernels run, such as ``triton``.
        tensors: this rank's weights by name.
        options: what :class:`TorchDriver` takes.

    Raises:
        IrcError: ``device-missing``.
    """

    calls_entries: ClassVar[bool] = False

    def __init__(self, backend: str, tensors: Mapping[str, torch.Tensor], **options: Any) -> None:
        super().__init__(tensors, **options)
        self.device = device_of(backend)
        self._stream: Any = None
        self._moved = self._copies_of(tensors, self.store)
        here = {name: moved.copy for name, moved in self._moved.items()}
        self.tensors = {name: here.get(name, tensor) for name, tensor in tensors.items()}

    def scope(self) -> AbstractContextManager[object]:
        """Let torch make new tensors on the device."""
        return nullcontext() if self.device.type == "cpu" else self.device

    @contextmanager
    def calling(self, states: frozenset[str]) -> Generator[None]:
        """Run a call on the device, with the weights that lie elsewhere as they are there.

        Args:
            states: weights that the call writes to, by name.
        """
        for each in self._moved.values():
            now = version_of(each.weight)
            if now is None or now != each.version:
                each.copy.copy_(each.weight)
                each.version = now
        if self.device.type == "cpu":
            yield
        else:
            with torch.cuda.device(self.device), self.scope():
                self._follow(torch.cuda.current_stream())
                yield
        for name, each in self._moved.items():
            if name in states:
                each.weight.copy_(each.copy)
                each.version = version_of(each.weight)

    def _copies_of(
        self, tensors: Mapping[str, torch.Tensor], store: Store
    ) -> dict[str, WeightCopy]:
        """Return copies of the weights that lie elsewhere: one, whatever sizes have plans."""
        copies: dict[str, WeightCopy] = {}
        with store.lock:
            for name, tensor in tensors.items():
                if tensor.device == self.device:
                    continue
                check_elements(tensor, f"weight '{name}'")
                key, weight = (name, str(self.device)), tensor.detach()
                known = store.moved.get(key)
                if known is None or not known.shows(weight):
                    known = WeightCopy(weight, weight.to(self.device), version_of(tensor))
                    store.moved[key] = known
                copies[name] = known
        return copies

    def _follow(self, stream: Any) -> None:
        """Wait for the calls on another stream, whose arena and states this call uses."""
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream = stream
