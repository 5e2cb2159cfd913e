"""A native host program in this process: its steps on numpy, its regions as native programs.

Calls may come from several threads at once: nothing is kept of a call, and regions are
native programs, each of whose calls has memory of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from irc.dialects.items import ITEM_BYTES
from irc.errors import IrcError
from irc.plan import files
from irc.plan.host_code import ENTRY, Library
from irc.plan.json_text import MAX_BYTES, corrupt
from irc.plan.native import FOLDER, MANIFEST, WEIGHTS, NativeManifest, Port, View
from irc.plan.native import parse_native_manifest as parse_manifest
from irc.plan.native_host import HOST, NativeHost, parse_native_host
from irc.plan.open_sizes import HostSize, dim_of, example_or, number_of
from irc.runtime.host_calls import HostCalls, sizes_of
from irc.runtime.host_shapes import Known
from irc.runtime.native.arguments import as_array, in_order
from irc.runtime.native.dtypes import dtype_of
from irc.runtime.native.folder import Native, check_expected, open_at, verified
from irc.runtime.native.memory import Array
from irc.runtime.onnx_ops.values import Item


@dataclass(frozen=True)
class NativeHostFolder:
    """A verified folder; the code and weights of its regions are not read yet.

    Attributes:
        folder: where it lies.
        host: the content of host.json.
        manifest: digests of its own files.
        regions: by name.
        hash: digest of the manifest, which names the program, its regions and its weights.
    """

    folder: Path
    host: NativeHost
    manifest: NativeManifest
    regions: Mapping[str, Native]
    hash: str

    @property
    def bytes(self) -> dict[str, int]:
        """The size of each file; those of a region under its name."""
        own = {name: entry.bytes for name, entry in self.manifest.files.items()}
        inner = {f"{n}/{f}": size for n, r in self.regions.items() for f, size in r.bytes.items()}
        return own | inner

    def code_bytes(self, name: str) -> int:
        """Return the bytes of the machine code of one kind, of all regions."""
        return sum(region.code_bytes(name) for region in self.regions.values())

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights."""
        return sum(size for name, size in self.bytes.items() if name.endswith(WEIGHTS))


def open_native_host(place: Path, expected: str = "") -> NativeHostFolder:
    """Read the description of a host program, and those of its regions.

    Raises:
        IrcError: ``plan-corrupt``, ``plan-version``, ``plan-hash-mismatch``.
    """
    text = files.read_file(place, MANIFEST, MAX_BYTES)
    manifest = parse_manifest(text, str(place / MANIFEST))
    program_hash = files.plan_hash(text)
    check_expected(place, program_hash, expected)
    host = parse_native_host(verified(place, HOST, manifest), str(place / HOST))
    beside = place.parent / HOST
    if place.name == FOLDER and beside.is_file():
        plan = hashlib.sha256(files.read_file(place.parent, HOST, MAX_BYTES)).hexdigest()
        if plan != host.plan:
            raise corrupt("the native program was made from another plan than that beside it",
                          str(place))  # fmt: skip
    regions: dict[str, Native] = {}
    for name, digest in host.regions.items():
        try:
            regions[name] = open_at(place / name, digest)
        except IrcError as error:
            if "plan-hash-mismatch" not in error.codes:
                raise
            raise corrupt(f"{name} is not the program that {HOST} says", str(place)) from None
        if len(digest) != hashlib.sha256().digest_size * 2:
            raise corrupt(f"{name} is named by no digest", str(place))
    return NativeHostFolder(place, host, manifest, regions, program_hash)


def stored_arrays(native_folder: NativeHostFolder) -> list[Array]:
    """Return the arrays of the host, read-only."""
    content = verified(native_folder.folder, WEIGHTS, native_folder.manifest)
    arrays: list[Array] = []
    for each in native_folder.host.arrays:
        length = prod(each.shape) * ITEM_BYTES.get(each.dtype, 0)
        if min(each.shape, default=0) < 0 or not 0 <= each.start <= len(content) - length:
            raise corrupt("an array lies outside the weights", str(native_folder.folder / WEIGHTS))
        part = content[each.start : each.start + length]
        arrays.append(np.frombuffer(part, dtype_of(each.dtype)).reshape(each.shape))
    return arrays


@dataclass(frozen=True)
class HostArgument:
    """An input or output.

    Attributes:
        name: the user's.
        dtype: numpy's; None for what is no tensor: a list, a string, None.
        shape: a number, or for an open size its formula; None for what is no tensor.
    """

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int | str, ...] | None


class NativeRegions:
    """The regions of a program, as native programs.

    Args:
        programs: what runs each: inputs in order.
    """

    def __init__(self, programs: Mapping[str, Callable[[list[Item]], list[Array]]]) -> None:
        self._programs = programs

    def run(self, name: str, inputs: list[Item], sizes: Known) -> list[Item] | None:
        """Run a region; None where its plan is not for the sizes."""
        try:
            return list(self._programs[name](inputs))
        except IrcError as error:
            if "size-outside" not in error.codes:
                raise
        return None

    def step(self, name: str, inputs: list[Item], sizes: Known) -> list[Item]:
        """Refuse sizes that a region's plan is not for: torch alone runs its ops one by one.

        Raises:
            IrcError: ``size-outside``.
        """
        return self._programs[name](inputs)

    def library(self, step: Library, operands: list[Item], shapes: Sequence[Sequence[int]]) -> Any:
        """Refuse: a file with such steps is not read."""
        raise corrupt(f"{step.op} is torch's", HOST)


class NativeHostProgram:
    """A loaded host program; :func:`irc.runtime.load` makes one.

    Args:
        native_folder: the verified folder.
        programs: the loaded program of each region.
        code: the name of the code that runs.
        threads: that a call of a region uses.

    Attributes:
        inputs: what :meth:`run` takes, in order.
        outputs: what it gives.
        sizes: which are open.
        code: the name of the code that runs.
        threads: that a call uses.
        hash: names program and weights.
    """

    def __init__(
        self, native_folder: NativeHostFolder, programs: Mapping[str, Any], code: str, threads: int
    ) -> None:
        self.hash, self.code, self.threads = native_folder.hash, code, threads
        host = self._host = native_folder.host
        self._names = list(host.code.inputs)
        self.sizes: tuple[HostSize, ...] = host.code.symbols
        regions = NativeRegions({name: each.run for name, each in programs.items()})
        self._stated = host.code.functions[ENTRY].inputs
        self.inputs = tuple(map(self._argument, self._names, self._stated))
        self.outputs = tuple(HostArgument(name, None, None) for name in host.code.outputs)
        self._calls = HostCalls(host.code, stored_arrays(native_folder), regions)

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> list[Item]:
        """Run once; any thread may call it at any time.

        Args:
            inputs: by name, or in order: numpy arrays, or what numpy reads through DLPack; lists
                and None for inputs that are no tensors.

        Returns:
            The outputs, in order, each in memory of its own: arrays; lists, None.

        Raises:
            IrcError: ``input-mismatch``; ``size-outside``, also where a size that the run decides
                is one that a region was not checked for; ``index-out-of-range``.
        """
        ordered = in_order(inputs, self._names)
        return self._calls.run([
            value if wanted.shape is None or type(value) is np.ndarray else _array(wanted, value)
            for wanted, value in zip(self.inputs, ordered, strict=True)
        ])  # fmt: skip

    def __call__(self, *inputs: Any) -> list[Item]:
        """Run once on the inputs in order; see :meth:`run`."""
        return self.run(inputs)

    def ports(self, sizes: Mapping[str, int]) -> tuple[Port, ...]:
        """Return the inputs at some sizes.

        Raises:
            IrcError: ``size-unknown``, ``size-outside``; ``input-mismatch`` for an input that is no
                tensor.
        """
        numbers = example_or(self.sizes, sizes)
        known = sizes_of(self._host.code, [numbers[each.symbol] for each in self.sizes])
        ports: list[Port] = []
        for name, stated in zip(self._names, self._stated, strict=True):
            if stated is None:
                raise IrcError("input-mismatch", f"input '{name}' is no tensor: none can be drawn")
            shape = tuple(number_of(dim, known) for dim in stated.shape)
            ports.append(Port(name, View(0, 0, stated.dtype, shape)))
        return tuple(ports)

    def _argument(self, name: str, stated: Any) -> HostArgument:
        if stated is None:
            return HostArgument(name, None, None)
        sizes = [dim_of(dim) for dim in stated.shape]
        shape = tuple(size if isinstance(size, int) else str(size) for size in sizes)
        return HostArgument(name, dtype_of(stated.dtype), shape)


def _array(wanted: HostArgument, value: Any) -> Array:
    try:
        return as_array(value)
    except TypeError as error:
        raise IrcError(
            "input-mismatch", f"input '{wanted.name}' is {error}", help="give a numpy array"
        ) from None
