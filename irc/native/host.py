"""The native folder of a host program: its steps as JSON, its regions as native programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from irc.dialects.task import KernelOp
from irc.errors import InternalError
from irc.native.write import Native
from irc.plan import built, native
from irc.plan.files import plan_hash
from irc.plan.host import HostPlan
from irc.plan.host_code import HostCode, Library, Node
from irc.plan.load import LoadedPlan
from irc.plan.native import FOLDER, MANIFEST, WEIGHTS
from irc.plan.native_host import HOST, NativeHost, StoredArray, native_host_text
from irc.plan.schema import ALIGNMENT
from irc.report.native import no_native_line, size_text
from irc.runtime.host import host_module
from irc.runtime.host_lower import host_code
from irc.runtime.onnx_ops.run import needs_torch
from irc.runtime.onnx_ops.values import FLOW

if TYPE_CHECKING:
    from irc.backends.cpu.variants import Variant


class Export(Protocol):
    """What the plan of a region was written from."""

    @property
    def plan(self) -> LoadedPlan:
        """The plan."""
        ...

    @property
    def kernels(self) -> Sequence[KernelOp]:
        """Of the plan; where it leaves sizes open, with names in theirs."""
        ...

    @property
    def low(self) -> Mapping[str, int]:
        """The least number of each size that is open."""
        ...


class NativeHostProgram:
    """The native program of a host program that is being written: compiled, saved, described.

    Args:
        variants: kinds of processors; none: there is to be no program.
    """

    def __init__(self, variants: tuple[Variant, ...]) -> None:
        self._variants = variants
        self._reason = "" if variants else "none was asked for"
        self._regions: dict[str, Native] = {}
        self._code: HostCode | None = None
        self._arrays: list[Any] = []
        self._hash = ""
        self._weight_bytes = 0

    @classmethod
    def parse(cls, text: str) -> NativeHostProgram:
        """Read the names of kinds; empty for all of them.

        Raises:
            IrcError: ``option-value``.
        """
        from irc.backends.cpu.variants import parse_variants

        return cls(tuple(parse_variants(text)))

    def compile(self, plan: HostPlan, exports: Mapping[str, Export]) -> None:
        """Compile the kernels of all regions, unless something is against it.

        Args:
            plan: the host program.
            exports: what the plans of its regions were written from.
        """
        if self._reason:
            return
        self._plan = plan
        code, arrays = host_code(host_module(plan), plan.facts, plan.weights)
        self._reason = reason_against_host(plan, code) or ""
        for name, export in exports.items():
            if self._reason:
                return
            region = Native(self._variants)
            region.compile(export.plan, export.kernels, _weights(plan, export), export.low)
            self._reason = f"{name}: {region.reason}" if region.reason else ""
            self._regions[name] = region
        self._code, self._arrays = code, arrays

    def write(self, plan_folder: Path) -> None:
        """Write the folder into that of the plan."""
        if self._reason or self._code is None:
            return
        place = plan_folder / FOLDER
        place.mkdir()
        hashes = {name: region.write_into(place / name) for name, region in self._regions.items()}
        from irc import __version__

        stored, content = _packed(self._arrays)
        host = NativeHost(self._plan.hash, self._code, stored, hashes, __version__)
        files = {HOST: native_host_text(host).encode(), WEIGHTS: content}
        for name, data in files.items():
            (place / name).write_bytes(data)
        entries = {
            name: native.NativeFile(len(data), native.digests(data))
            for name, data in sorted(files.items())
        }
        text = native.native_text(native.NativeManifest(entries))
        (place / MANIFEST).write_text(text, encoding="utf-8")
        self._hash = plan_hash(text)
        built.note(self._hash)
        self._weight_bytes = len(content) + sum(r.weight_bytes for r in self._regions.values())

    def summary(self) -> str:
        """Say what was written, or why nothing was."""
        if self._reason or self._code is None:
            return no_native_line(self._reason)
        kinds = next((region.kinds for region in self._regions.values()), ())
        needs = sorted({each for region in self._regions.values() for each in region.needs})
        parts = [
            *kinds, f"{len(self._regions)} regions", f"weights {size_text(self._weight_bytes)}",
            f"hash {self._hash[:16]}",
        ]  # fmt: skip
        said = f"torch runs {', '.join(needs)}" if needs else "numpy alone"
        return f"{'native':<12}{', '.join(parts)}\n{'needs':<12}{said}"


def reason_against_host(plan: HostPlan, code: HostCode) -> str | None:
    """Return why a host program has no native one; None where it has one."""
    for name, region in plan.facts.regions.items():
        if region.reason:
            return f"{name} has no plan, and torch runs its ops: {region.reason}"
    for function in code.functions.values():
        for step in function.steps:
            if isinstance(step, Library):
                return f"{step.op} between the regions is torch's ({step.loc})"
            if isinstance(step, Node) and needs_torch(step.target):
                return f"{step.target.rpartition('::')[2]} between the regions is torch's"
    return None


def _weights(plan: HostPlan, export: Export) -> dict[str, Any]:
    inner = export.plan.plan
    names = [inner.buffers[index].name for index in inner.weights]
    return {name: plan.weights[name] for name in names if name in plan.weights}


def _packed(arrays: list[Any]) -> tuple[tuple[StoredArray, ...], bytes]:
    """Return where each array begins in one string of bytes, and that string."""
    names = {dtype: name for name, dtype in FLOW.items()}
    stored: list[StoredArray] = []
    content = bytearray()
    for each in arrays:
        if not isinstance(each, np.ndarray):
            raise InternalError("a host program reads a constant that is no tensor")
        array = cast("np.ndarray[Any, np.dtype[Any]]", each)
        stored.append(StoredArray(len(content), names[array.dtype], array.shape))
        content += np.ascontiguousarray(array).tobytes()
        content += bytes(-len(content) % ALIGNMENT)
    return tuple(stored), bytes(content)
