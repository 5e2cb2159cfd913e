"""The native program of a plan: memory, steps and kernel calls, and the code of its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from irc.dialects.task import KernelOp
from irc.errors import IrcError
from irc.plan import native
from irc.plan.load import LoadedPlan
from irc.plan.native import View
from irc.plan.native_sizes import NativeSizes, native_sizes_text
from irc.plan.open_sizes import made_again
from irc.plan.schema import ALIGNMENT, Copy, Kernels, Library, Plan, touched
from irc.runtime.segments import SegmentCall, segment_calls

if TYPE_CHECKING:
    from irc.backends.cpu.native import Kind
    from irc.backends.cpu.variants import Variant

BACKEND = "cpu"


@dataclass(frozen=True)
class NativePlan:
    """A plan's program and machine code, to be written beside its weights.

    Attributes:
        program: everything but where weights lie.
        codes: the shared objects by file name.
        layout: for each weight or prepared buffer that calls read, where it begins in the file.
        sizes: what of the program follows from sizes that are open.
    """

    program: native.Program
    codes: Mapping[str, bytes]
    layout: Mapping[int, int]
    weight_bytes: int
    sizes: NativeSizes | None = None


def reason_against(loaded: LoadedPlan) -> str | None:
    """Return why a plan has no native program; None where it has one."""
    plan = loaded.plan
    if plan.device_mesh.num_ranks > 1:
        return f"it is for {plan.device_mesh.num_ranks} ranks"
    if plan.backend != BACKEND:
        return f"its kernels are for {plan.backend}"
    seeds = [plan.buffers[i] for i in plan.weights if plan.buffers[i].role == "seed"]
    if any((b.num_elements, b.dtype) != (1, "i64") for b in seeds):
        return "it draws random numbers from seeds of its own kind"
    if loaded.sized is not None and (made := loaded.sized.sizes.kernels):
        return f"{made_again(made)} (--size NAME=N gives a size a number)"
    return None


def native_plan(
    loaded: LoadedPlan,
    kernels: Sequence[KernelOp],
    variants: Sequence[Variant],
    low: Mapping[str, int],
) -> NativePlan:
    """Work out a plan's program, and compile its kernels.

    Args:
        loaded: a plan that nothing is against.
        kernels: of the plan; where it leaves sizes open, with names in theirs.
        variants: kinds of processors, the most capable first.
        low: the least number of each size that is open.

    Raises:
        InternalError: the program is not that of the plan at other sizes.
    """
    from irc.backends.cpu.native import compile_kinds

    plan = loaded.plan
    _, used = calls_of(plan)
    by_name = {op.sym_name.data: op for op in kernels}
    chosen = [by_name[plan.kernels[number].name] for number in used]
    kinds = compile_kinds(chosen, variants, low)
    layout, total = _layout(plan)
    program = program_of(plan, loaded.hash, layout, kinds)
    sizes = None
    if loaded.sized is not None:
        from irc.native.sizes import sizes_of, verify_sizes

        sizes = sizes_of(loaded.sized, program, kinds)
        verify_sizes(sizes, program, loaded.sized, kinds)
    return NativePlan(*_tied(program, sizes, kinds), layout, total, sizes)


def _tied(
    program: native.Program, sizes: NativeSizes | None, kinds: Sequence[Kind]
) -> tuple[native.Program, dict[str, bytes]]:
    """Put the digest of the program behind the code of each kind, and name the files anew."""
    bare = replace(program, codes=tuple(replace(code, file="") for code in program.codes))
    texts = [native.native_text(bare), *([] if sizes is None else [native_sizes_text(sizes)])]
    digest = native.owner_digest([text.encode() for text in texts], ())
    whole = [replace(kind, content=kind.content + digest) for kind in kinds]
    codes = zip(program.codes, whole, strict=True)
    named = replace(program, codes=tuple(replace(code, file=kind.file) for code, kind in codes))
    return named, {kind.file: kind.content for kind in whole}


def program_of(
    plan: Plan, digest: str, layout: Mapping[int, int], kinds: Sequence[Kind]
) -> native.Program:
    """Return the program of a plan.

    Args:
        plan: also one with sizes for its numbers, where no code is asked for.
        digest: the plan's hash.
        layout: where each weight begins in the file.
        kinds: the kernels, compiled.
    """
    from irc import __version__

    calls, used = calls_of(plan)
    written = {plan.root(i) for i in plan.states()}
    seeds = {i for i in plan.weights if plan.buffers[i].role == "seed"}
    base = {buffer: k for k, buffer in enumerate(plan.bases, 1)}
    return native.Program(
        plan=digest,
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
        codes=tuple(kind.code(calls) for kind in kinds),
        arena_bytes=plan.arena_bytes,
        num_bases=1 + len(plan.bases),
        kernels=len(used),
        seeds=tuple(base[i] for i in sorted(seeds & set(layout))),
        irc=__version__,
    )


def calls_of(plan: Plan) -> tuple[list[list[SegmentCall]], list[int]]:
    """Return the calls of each segment, and which kernels of the plan their numbers stand for.

    Those that only prepare weights are not there.
    """
    prepared = sum(isinstance(action, Kernels) for action in plan.prepared)
    return _renumbered(segment_calls(plan)[prepared:])


def _renumbered(
    segments: Sequence[Sequence[SegmentCall]],
) -> tuple[list[list[SegmentCall]], list[int]]:
    """Return the calls with kernels counted anew."""
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
