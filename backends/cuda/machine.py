"""What the kernels of a plan run on: a GPU, by its driver; or what stands in for one.

A stand-in has the driver's functions and a compiler of its own (the tests' runs the sources on the
host, thread by thread); all else of a launch is the same code.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

from irc.backends.cuda.build import machine_code
from irc.backends.cuda.libcuda import Driver, Handle, find_driver


class Machine(Protocol):
    """Where kernels are compiled for, and run.

    Attributes:
        device: its name for torch: ``cuda``, or ``cpu`` where it is the host.
        driver: starts kernels.
    """

    device: str

    @property
    def driver(self) -> Driver: ...

    def arch(self) -> int:
        """Return the compute capability as a number, 90 for 9.0."""
        ...

    def compile(self, sources: Sequence[str], arch: int) -> list[bytes]:
        """Return the machine code of some files."""
        ...

    def place(self) -> int:
        """Return the number of the device at hand, on which this thread can launch from now on."""
        ...

    def stream(self) -> Handle:
        """Return the stream on which torch runs what comes next."""
        ...


class Gpu:
    """The GPU that torch works on."""

    device = "cuda"

    @property
    def driver(self) -> Driver:
        """That of this machine."""
        return find_driver()

    def arch(self) -> int:
        """Return the compute capability as a number, 90 for 9.0."""
        import torch

        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor

    def compile(self, sources: Sequence[str], arch: int) -> list[bytes]:
        """Return the machine code of some files."""
        return machine_code(sources, arch)

    def place(self) -> int:
        """Return the number of the device at hand, on which this thread can launch from now on."""
        import torch

        number = torch.cuda.current_device()
        self.driver.activate(number)
        return number

    def stream(self) -> Handle:
        """Return torch's current stream."""
        import torch

        return torch.cuda.current_stream().cuda_stream


_machines: list[Machine] = [Gpu()]


def current() -> Machine:
    """Return what kernels run on."""
    return _machines[-1]


@contextmanager
def use(machine: Machine) -> Generator[Machine]:
    """Let kernels that are loaded inside run on another machine."""
    _machines.append(machine)
    try:
        yield machine
    finally:
        _machines.remove(machine)
