"""The native program of a plan and its machine code, worked out and compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from irc.backends.cpu.native import Kind
from irc.backends.cpu.variants import Variant
from irc.dialects.task import KernelOp
from irc.native.program import calls_of, program_of
from irc.plan import native
from irc.plan.load import LoadedPlan
from irc.plan.native_sizes import NativeSizes, native_sizes_text
from irc.plan.open_sizes import made_again
from irc.plan.schema import ALIGNMENT, Plan, touched

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
    if loaded.sized is not None and (kernels := loaded.sized.sizes.kernels):
        return f"{made_again(kernels)} (--size NAME=N gives a size a number)"
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


def _layout(plan: Plan) -> tuple[dict[int, int], int]:
    """Return where each weight that calls read begins, and the size of the file."""
    read = {plan.root(i) for action in plan.actions for i in touched(action, plan.actions)}
    read |= {plan.root(i) for i in plan.states()}
    offsets: dict[int, int] = {}
    total = 0
    for index, buffer in enumerate(plan.buffers):
        if index in read and buffer.storage in ("weight", "prepared"):
            offsets[index] = total
            total += -(-buffer.size_bytes // ALIGNMENT) * ALIGNMENT
    return offsets, total
