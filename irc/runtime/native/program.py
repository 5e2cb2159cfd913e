"""A native program in this process: numpy arrays in, numpy arrays out.

Calls may come from several threads at once: each leases an arena and a base table of its own, and
the threads of kernels go from one call to the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from irc.plan.native import Code, Port
from irc.plan.native_host import HOST
from irc.plan.open_sizes import example_or
from irc.runtime.native.arguments import in_order
from irc.runtime.native.driver import NativeDriver
from irc.runtime.native.folder import Native, check_trusted, choose, native_place, open_at
from irc.runtime.native.library import check_torch
from irc.runtime.native.memory import Array
from irc.runtime.native.processor import default_threads

if TYPE_CHECKING:
    from irc.runtime.native.host import NativeHostProgram
    from irc.runtime.native.open_program import OpenProgram


def load(
    folder: str | os.PathLike[str],
    *,
    threads: int | None = None,
    code: str = "",
    hash: str = "",  # noqa: A002 - the word that the user reads
    mapped: bool = False,
    trust: bool = False,
) -> Program | OpenProgram | NativeHostProgram:
    """Load the native program of a plan.

    It is machine code, which is run only where it is known whose: your irc wrote it on this
    machine, a key that you trust has signed it, or you say so (``irc explain trust``).

    Args:
        folder: of a plan, or its native folder alone.
        threads: that a call uses; by default the cores that this process may use.
        code: the kind of processor whose code is taken; by default the best for the one at hand.
        hash: what ``irc trust`` printed, or its beginning; covers the weights too. Of 32 digits or
            more, it says that you trust this program and no other.
        mapped: leave weights in the file, from which all processes of a machine share them.
        trust: you trust who made the program as you trust the programs that you run.

    Returns:
        What :meth:`Program.run` runs. A plan with open sizes gives an
        :class:`~irc.runtime.native.open_program.OpenProgram`, which takes inputs of all sizes that
        the plan was checked for; a host program a
        :class:`~irc.runtime.native.host.NativeHostProgram`, which runs its regions.

    Raises:
        IrcError: ``plan-missing``, ``native-missing``, ``plan-corrupt``, ``plan-version``,
            ``plan-hash-mismatch``, ``plan-untrusted``, ``processor-unsupported``,
            ``package-missing``.
    """
    place = native_place(folder)
    threads = default_threads() if threads is None else threads
    if not (place / HOST).is_file():
        native_folder = open_at(place, hash)
        check_trusted(place, native_folder.hash, hash, trust=trust)
        return _program(native_folder, threads, code, mapped=mapped)
    from irc.runtime.native.host import NativeHostProgram, open_native_host

    host = open_native_host(place, hash)
    check_trusted(place, host.hash, hash, trust=trust)
    programs = {
        name: _program(each, threads, code, mapped=mapped) for name, each in host.regions.items()
    }
    names = [each.code for each in programs.values()]
    return NativeHostProgram(host, programs, names[0] if names else "numpy", threads)


def _program(
    native_folder: Native, threads: int, code: str, *, mapped: bool
) -> Program | OpenProgram:
    chosen = choose(native_folder.program, code)
    check_torch(native_folder.program.library)
    if native_folder.sizes is None:
        return Program(native_folder, chosen, threads, mapped=mapped)
    from irc.runtime.native.open_program import OpenProgram

    return OpenProgram(native_folder, chosen, threads, mapped=mapped)


class Program:
    """A loaded program; :func:`load` makes one.

    Args:
        native_folder: the verified folder.
        code: which of its codes.
        threads: that a call uses.
        mapped: leave weights in the file.

    Attributes:
        inputs: what :meth:`run` takes, in order.
        outputs: what it gives.
        code: the name of the code that runs.
        threads: that a call uses.
        hash: names program and weights.
    """

    def __init__(self, native_folder: Native, code: Code, threads: int, *, mapped: bool) -> None:
        self.hash, self.code, self.threads = native_folder.hash, code.name, threads
        self._bound = NativeDriver(native_folder, code, threads, mapped=mapped).bind(
            native_folder.program, code
        )
        self._ports = native_folder.program.inputs
        self._names = [port.name for port in self._ports]
        self.inputs, self.outputs = self._bound.inputs, self._bound.outputs

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> list[Array]:
        """Run once; any thread may call it at any time.

        Args:
            inputs: by name, or in order: numpy arrays, or what numpy reads through DLPack.

        Returns:
            The outputs, in order, each in memory of its own.

        Raises:
            IrcError: ``input-mismatch``; ``index-out-of-range`` where an input is an index.
        """
        return self._bound(*in_order(inputs, self._names))

    def __call__(self, *inputs: Any) -> list[Array]:
        """Run once on the inputs in order; see :meth:`run`."""
        return self.run(inputs)

    def ports(self, sizes: Mapping[str, int]) -> tuple[Port, ...]:
        """Return the inputs; all sizes are fixed.

        Raises:
            IrcError: ``size-unknown`` where one is named.
        """
        example_or((), sizes)
        return self._ports
