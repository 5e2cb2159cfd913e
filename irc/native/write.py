"""Writing the native folder of a plan: what runs it without irc's dependencies.

Weights are packed and folded here, once, straight into the file that programs read: the numbers are
those that irc's own executor would make, and a program starts without making them again.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from irc.dialects.task import KernelOp
from irc.native.native_plan import NativePlan, native_plan, reason_against
from irc.plan import built, native
from irc.plan.files import plan_hash
from irc.plan.load import LoadedPlan
from irc.plan.native import MANIFEST, PROGRAM, SIZES, WEIGHTS
from irc.plan.native_sizes import native_sizes_text
from irc.report.native import native_lines, no_native_line

if TYPE_CHECKING:
    import torch

    from irc.backends.cpu.variants import Variant


class Native:
    """The native program of a plan that is being written: compiled, saved, described.

    Args:
        variants: kinds of processors; none: there is to be no program.
    """

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._variants = variants
        self._reason = "" if variants else "none was asked for"
        self._loaded: LoadedPlan | None = None
        self._plan: NativePlan | None = None
        self._tensors: Mapping[str, torch.Tensor] = {}
        self._hash = ""

    @classmethod
    def parse(cls, text: str) -> Native:
        """Read the names of kinds; empty for all of them.

        Raises:
            IrcError: ``option-value``.
        """
        from irc.backends.cpu.variants import parse_variants

        return cls(parse_variants(text))

    def compile(
        self,
        loaded: LoadedPlan,
        kernels: Sequence[KernelOp],
        tensors: Mapping[str, torch.Tensor],
        low: Mapping[str, int] | None = None,
    ) -> None:
        """Compile the kernels of a plan, unless something is against it.

        Args:
            loaded: the plan.
            kernels: of the plan; where it leaves sizes open, with names in theirs.
            tensors: the weights by name.
            low: the least number of each size that is open.

        Raises:
            InternalError: the program is not that of the plan at other sizes.
        """
        self._reason = self._reason or reason_against(loaded) or ""
        if self._reason:
            return
        self._loaded, self._tensors = loaded, tensors
        self._plan = native_plan(loaded, kernels, self._variants, low or {})

    @property
    def reason(self) -> str:
        """Why there is no program; empty where there is one."""
        return self._reason

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of processors that there is code for."""
        return () if self._plan is None else tuple(c.name for c in self._plan.program.codes)

    @property
    def needs(self) -> frozenset[str]:
        """The ops that torch runs."""
        steps = () if self._plan is None else self._plan.program.library
        return frozenset(step.called for step in steps)

    @property
    def weight_bytes(self) -> int:
        """The bytes of its weights."""
        return 0 if self._plan is None else self._plan.weight_bytes

    def write(self, plan_folder: Path) -> None:
        """Write the folder into that of the plan."""
        if self._plan is not None:
            self.write_into(plan_folder / native.FOLDER)

    def write_into(self, place: Path) -> str:
        """Write a folder for a program that there is, and return its hash."""
        assert self._plan is not None and self._loaded is not None
        self._hash = _write(self._plan, self._loaded, self._tensors, place)
        return self._hash

    def summary(self) -> str:
        """Say what was written, or why nothing was."""
        if self._plan is None:
            return no_native_line(self._reason)
        plan = self._plan
        input_sizes = None if plan.sizes is None else plan.sizes.given
        return native_lines(plan.program, plan.codes, plan.weight_bytes, self._hash, input_sizes)


def _write(
    plan: NativePlan, loaded: LoadedPlan, tensors: Mapping[str, torch.Tensor], place: Path
) -> str:
    place.mkdir()
    entries: dict[str, native.NativeFile] = {}
    texts = {PROGRAM: native.native_text(plan.program).encode()}
    if plan.sizes is not None:
        texts[SIZES] = native_sizes_text(plan.sizes).encode()
    for name, content in (*texts.items(), *plan.codes.items()):
        (place / name).write_bytes(content)
        entries[name] = native.NativeFile(len(content), native.digests(content))
    entries[WEIGHTS] = _write_weights(place / WEIGHTS, plan, loaded, tensors)
    manifest = native.NativeManifest({name: entries[name] for name in sorted(entries)})
    text = native.native_text(manifest)
    (place / MANIFEST).write_text(text, encoding="utf-8")
    digest = plan_hash(text)
    built.note(digest)
    return digest


def _write_weights(
    path: Path, plan: NativePlan, loaded: LoadedPlan, tensors: Mapping[str, torch.Tensor]
) -> native.NativeFile:
    """Pack weights into the file itself: a large model has them in memory once, not twice."""
    if not plan.weight_bytes:
        path.write_bytes(b"")
        return native.NativeFile(0, native.digests(b""))
    from irc.runtime.fill import fill

    with path.open("w+b") as file:
        file.truncate(plan.weight_bytes)
        # It is unmapped when nothing shows it any more.
        fill(mmap.mmap(file.fileno(), plan.weight_bytes), plan.layout, loaded, tensors)
    with path.open("rb") as file:
        pieces = iter(lambda: file.read(native.PIECE_BYTES), b"")
        digests = tuple(digest for piece in pieces for digest in native.digests(piece))
    return native.NativeFile(plan.weight_bytes, digests)
