"""Writing the native folder of a plan: what runs it without irc's dependencies.

Weights are packed and folded here, once, straight into the file that programs read: the numbers are
those that irc's own executor would make, and a program starts without making them again.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from irc.dialects.task import KernelOp
from irc.errors import IrcError
from irc.plan import native
from irc.plan.files import plan_hash
from irc.plan.load import LoadedPlan
from irc.plan.native import MANIFEST, PROGRAM, WEIGHTS, View
from irc.plan.schema import ALIGNMENT, Copy, Kernels, Library, Plan, touched
from irc.program import Program
from irc.report.native import native_lines, no_native_line
from irc.runtime.segments import SegmentCall, segment_calls

if TYPE_CHECKING:
    import torch

    from irc.backends.cpu.variants import Variant

BACKEND = "cpu"


@dataclass(frozen=True)
class NativePlan:
    """A plan's program and machine code, to be written beside its weights.

    Attributes:
        program: everything but where weights lie.
        codes: the shared objects by file name.
        layout: for each weight or prepared buffer that calls read, where it begins in the file.
    """

    program: native.Program
    codes: Mapping[str, bytes]
    layout: Mapping[int, int]
    weight_bytes: int


def reason_against(loaded: LoadedPlan) -> str | None:
    """Return why a plan has no native program; None where it has one."""
    plan = loaded.plan
    if loaded.sized is not None:
        return "it leaves sizes open (--size NAME=N gives one a number)"
    if plan.device_mesh.num_ranks > 1:
        return f"it is for {plan.device_mesh.num_ranks} ranks"
    if plan.backend != BACKEND:
        return f"its kernels are for {plan.backend}"
    seeds = [plan.buffers[i] for i in plan.weights if plan.buffers[i].role == "seed"]
    if any((b.num_elements, b.dtype) != (1, "i64") for b in seeds):
        return "it draws random numbers from seeds of its own kind"
    return None


def native_plan(
    loaded: LoadedPlan, kernels: Sequence[KernelOp], variants: Sequence[Variant]
) -> NativePlan:
    """Work out a plan's program, and compile its kernels.

    Args:
        loaded: a plan that nothing is against.
        kernels: of the plan.
        variants: kinds of processors, the most capable first.
    """
    from irc import __version__
    from irc.backends.cpu.native import native_codes

    plan = loaded.plan
    prepared = sum(isinstance(action, Kernels) for action in plan.prepared)
    calls, used = _renumbered(segment_calls(plan)[prepared:])
    by_name = {op.sym_name.data: op for op in kernels}
    chosen = [by_name[plan.kernels[number].name] for number in used]
    codes = native_codes(chosen, calls, variants)
    layout, total = _layout(plan)
    written = {plan.root(i) for i in plan.states()}
    seeds = {i for i in plan.weights if plan.buffers[i].role == "seed"}
    base = {buffer: k for k, buffer in enumerate(plan.bases, 1)}
    program = native.Program(
        plan=loaded.hash,
        inputs=tuple(_inputs(plan)),
        outputs=tuple(native.Port(plan.buffers[i].name, _view(plan, i)) for i in plan.outputs),
        fresh=tuple(
            native.Fresh(base[i], b.dtype, b.shape)
            for i, b in enumerate(plan.buffers)
            if b.storage == "output"
        ),
        stored=tuple(
            native.Stored(base[i], start, plan.buffers[i].size_bytes, i in written | seeds)
            for i, start in layout.items()
        ),
        steps=tuple(_steps(plan)),
        codes=tuple(code for code, _ in codes),
        arena_bytes=plan.arena_bytes,
        num_bases=1 + len(plan.bases),
        kernels=len(used),
        seeds=tuple(base[i] for i in sorted(seeds & set(layout))),
        irc=__version__,
    )
    return NativePlan(program, {code.file: content for code, content in codes}, layout, total)


def _renumbered(
    segments: Sequence[Sequence[SegmentCall]],
) -> tuple[list[list[SegmentCall]], list[int]]:
    """Return the calls with kernels counted anew: those that only prepare weights are not there."""
    number: dict[int, int] = {}
    found = [
        [
            SegmentCall(number.setdefault(call.kernel, len(number)), call.args, call.sizes)
            for call in calls
        ]
        for calls in segments
    ]
    return found, list(number)


def _layout(plan: Plan) -> tuple[dict[int, int], int]:
    """Return where each weight that calls read begins, and the size of the file."""
    read = {plan.root(i) for action in plan.actions for i in touched(action, plan.actions)}
    read |= {plan.root(i) for i in plan.states()}
    found: dict[int, int] = {}
    total = 0
    for index, buffer in enumerate(plan.buffers):
        if index in read and buffer.storage in ("weight", "prepared"):
            found[index] = total
            total += -(-buffer.size_bytes // ALIGNMENT) * ALIGNMENT
    return found, total


def _view(plan: Plan, index: int) -> View:
    buffer, (base, offset) = plan.buffers[index], plan.addresses[index]
    return View(base, offset, buffer.dtype, buffer.shape, buffer.strides)


def _inputs(plan: Plan) -> list[native.Port]:
    ranges = plan.ranges or (None,) * len(plan.inputs)
    return [
        native.Port(plan.buffers[i].name, _view(plan, i), plan.buffers[i].role == "cache", span)
        for i, span in zip(plan.inputs, ranges, strict=True)
    ]


def _steps(plan: Plan) -> list[native.NativeStep]:
    found: list[native.NativeStep] = []
    tables = 0
    for action in plan.actions:
        match action:
            case Kernels():
                found.append(native.Segment("segment", tables))
                tables += 1
            case Copy(source=source, target=target):
                found.append(native.Copy("copy", _view(plan, source), _view(plan, target)))
            case Library():
                found.append(_library(plan, action))
            case _:
                raise IrcError("world-size", "a collective has no place in a native program")
    return found


def _library(plan: Plan, action: Library) -> native.Library:
    return native.Library(
        "library",
        action.op,
        tuple(_view(plan, i) for i in action.inputs),
        tuple(_view(plan, i) for i in action.outputs),
        tuple(plan.root(i) in plan.read for i in action.outputs),
        action.attrs,
        action.op == "flow.scatter" and action.outputs == action.inputs[:1],
        action.loc,
    )


class Native:
    """The native program of a plan that is being written: compiled, saved, described.

    Args:
        variants: kinds of processors; none: there is to be no program.
    """

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._variants = variants
        self._reason = "" if variants else "none was asked for"
        self._loaded: LoadedPlan | None = None
        self._made: NativePlan | None = None
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

    def compile(self, loaded: LoadedPlan, program: Program) -> None:
        """Compile the kernels of a plan, unless something is against it.

        Args:
            loaded: the plan.
            program: that it was made from; its module holds the kernels.
        """
        self._reason = self._reason or reason_against(loaded) or ""
        if self._reason:
            return
        kernels = [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]
        self._loaded, self._tensors = loaded, program.tensors
        self._made = native_plan(loaded, kernels, self._variants)

    def write(self, plan_folder: Path) -> None:
        """Write the folder into that of the plan."""
        if self._made is not None and self._loaded is not None:
            self._hash = _write(self._made, self._loaded, self._tensors, plan_folder)

    def summary(self) -> str:
        """Say what was written, or why nothing was."""
        if self._made is None:
            return no_native_line(self._reason)
        made = self._made
        return native_lines(made.program, made.codes, made.weight_bytes, self._hash)


def _write(
    made: NativePlan, loaded: LoadedPlan, tensors: Mapping[str, torch.Tensor], plan_folder: Path
) -> str:
    place = plan_folder / native.FOLDER
    place.mkdir()
    entries: dict[str, native.NativeFile] = {}
    program = native.native_text(made.program).encode()
    for name, content in {PROGRAM: program, **made.codes}.items():
        (place / name).write_bytes(content)
        entries[name] = native.NativeFile(len(content), native.digests(content))
    entries[WEIGHTS] = _write_weights(place / WEIGHTS, made, loaded, tensors)
    manifest = native.NativeManifest({name: entries[name] for name in sorted(entries)})
    text = native.native_text(manifest)
    (place / MANIFEST).write_text(text, encoding="utf-8")
    return plan_hash(text)


def _write_weights(
    path: Path, made: NativePlan, loaded: LoadedPlan, tensors: Mapping[str, torch.Tensor]
) -> native.NativeFile:
    """Pack weights into the file itself: a large model has them in memory once, not twice."""
    if not made.weight_bytes:
        path.write_bytes(b"")
        return native.NativeFile(0, native.digests(b""))
    from irc.runtime.fill import fill

    with path.open("w+b") as file:
        file.truncate(made.weight_bytes)
        # It is unmapped when nothing shows it any more.
        fill(mmap.mmap(file.fileno(), made.weight_bytes), made.layout, loaded, tensors)
    with path.open("rb") as file:
        pieces = iter(lambda: file.read(native.PIECE_BYTES), b"")
        digests = tuple(digest for piece in pieces for digest in native.digests(piece))
    return native.NativeFile(made.weight_bytes, digests)
