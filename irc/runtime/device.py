"""The executor of a plan whose kernels run on a GPU.

Arena, weights and outputs are torch's memory on one device; kernels and torch's own ops go to
torch's current stream, so a call returns before the device has finished, as torch's own calls do.
Under ``TRITON_INTERPRET=1`` the device is the host and kernels run in Triton's interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import torch

from irc.errors import IrcError
from irc.plan.load import LoadedPlan
from irc.runtime.addresses import check_elements
from irc.runtime.executor import Executor, Lease
from irc.runtime.local_weights import WeightCopy, version_of
from irc.runtime.prepared import Store

Result = TypeVar("Result")


class DeviceExecutor(Executor):
    """Runs a plan on one GPU; see :class:`Executor`, whose call it is.

    A weight that lies elsewhere is copied to the device, again when it was written to, and states
    are copied back.
    """

    def __init__(
        self, loaded: LoadedPlan, tensors: Mapping[str, torch.Tensor], **options: Any
    ) -> None:
        self.device = device_of(loaded.plan.backend)
        self._stream: Any = None
        found = self._copies_of(tensors, options.get("store") or Store())
        self._moved = list(found.values())
        here = {name: found[name].copy if name in found else t for name, t in tensors.items()}
        with self.scope():
            super().__init__(loaded, here, **options)
        for spec in self._inputs:
            spec.device = self.device.type
        names = {loaded.plan.buffers[index].name for index in loaded.plan.states()}
        written = {id(here[name]) for name in names if name in here}
        self._written = [each for each in self._moved if id(each.copy) in written]

    def _copies_of(
        self, tensors: Mapping[str, torch.Tensor], store: Store
    ) -> dict[str, WeightCopy]:
        """Return copies of the weights that lie elsewhere: one, whatever sizes have plans."""
        found: dict[str, WeightCopy] = {}
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
                found[name] = known
        return found

    def scope(self) -> AbstractContextManager[object]:
        """Let torch make new tensors on the device."""
        return nullcontext() if self.device.type == "cpu" else self.device

    def new_lease(self) -> Lease:
        with self.scope():
            return super().new_lease()

    def prepare(self) -> Mapping[int, torch.Tensor]:
        with self.scope():
            return super().prepare()

    def run(
        self, given: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, ...]:
        return self._here(partial(super().run, given, into))

    def bound(
        self, given: Sequence[torch.Tensor | None], into: Sequence[torch.Tensor]
    ) -> Callable[..., None]:
        run = super().bound(given, into)
        return lambda *more: self._here(partial(run, *more))

    def refresh(self) -> None:
        self._here(super().refresh)

    def _here(self, run: Callable[[], Result]) -> Result:
        """Run on the device, with the weights that lie elsewhere as they are there."""
        for each in self._moved:
            now = version_of(each.weight)
            if now is None or now != each.version:
                each.copy.copy_(each.weight)
                each.version = now
        if self.device.type == "cpu":
            found = run()
        else:
            with torch.cuda.device(self.device), self.scope():
                self._follow(torch.cuda.current_stream())
                found = run()
        for each in self._written:
            each.weight.copy_(each.copy)
            each.version = version_of(each.weight)
        return found

    def _follow(self, stream: Any) -> None:
        """Wait for the calls on another stream, whose arena and states this call uses."""
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream = stream


def target_at_hand(backend: str, targets: Sequence[str]) -> str:
    """Return that of a backend's targets which is the GPU here; the first where there is no GPU.

    A GPU that is none of them gets the lowest: only what is in it does every later one have.

    Args:
        backend: its name.
        targets: such as ``sm_80``, the default first.
    """
    if import_module(f"irc.backends.{backend}").is_interpreted() or not torch.cuda.is_available():
        return targets[0]
    major, minor = torch.cuda.get_device_capability()
    archs = {int(name.removeprefix("sm_")): name for name in targets}
    return archs.get(10 * major + minor, archs[min(archs)])


def name_at_hand(backend: str) -> str:
    """Return the name of the GPU here; empty where there is none, or in Triton's interpreter."""
    if import_module(f"irc.backends.{backend}").is_interpreted() or not torch.cuda.is_available():
        return ""
    return torch.cuda.get_device_name()


def device_of(backend: str) -> torch.device:
    """Return where the kernels of a backend run.

    Raises:
        IrcError: ``device-missing``.
    """
    if import_module(f"irc.backends.{backend}").is_interpreted():
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise IrcError(
            "device-missing",
            f"kernels of backend '{backend}' run on a GPU, and torch finds none here",
            because=f"torch {torch.__version__}: torch.cuda.is_available() is False",
            help="run the plan where there is one, or compile it with the backend cpu",
        )
    return torch.device("cuda", own_device(torch.cuda.current_device(), torch.cuda.device_count()))


def own_device(current: int, count: int) -> int:
    """Return which of the GPUs that a process sees is its own.

    Args:
        current: torch's current one: other than 0, the program has chosen it.
        count: how many it sees; a launcher may show each process one.

    >>> own_device(2, 4)
    2
    """
    local = os.environ.get("LOCAL_RANK", "")
    return int(local) % count if current == 0 and local.isascii() and local.isdigit() else current
