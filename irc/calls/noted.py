"""Plans of a compiled module, and what :func:`irc.explain` and ``IRC_LOGS`` say of each.

The ops that a kernel fuses are known by their ids when the plan is there; which op and line each of
them is, the program says before it becomes kernels. So it is looked at on the way.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ModuleOp

from irc import logs
from irc.dialects.flow import FlowOp, id_of, loc_of
from irc.dialects.literals import ConstantOp
from irc.dialects.printer import Texts
from irc.dialects.task import KernelOp
from irc.errors import IrcError
from irc.frontends.torch.locations import shown
from irc.frontends.torch.structure import argument_names
from irc.pipeline import Options, make_plan
from irc.plan.libraries import falls_back, library_steps, name_of
from irc.plan.load import LoadedPlan
from irc.plan.schema import Kernels, Plan
from irc.program import Program
from irc.record import CallKind, FallBack, Graph, Kernel, Op, Record
from irc.report.ops import label

KINDS = {
    "dynamo": "graph without gradients",
    "aot forward": "forward pass",
    "aot backward": "backward pass",
    "a part": "part of a graph",
    "a branch": "branch of control flow",
    "a step": "step of training",
}
"""Where programs of a torch graph come from, in the user's words; others are whole calls."""

NO_FORM = "irc has no form for the op, so that nothing is fused with it"


MOST_ARGUMENTS = 24
"""Of a call that are named; of more, the number."""


class Watch:
    """Looks at a program while it is lowered; given as ``on_stage``."""

    def __init__(self) -> None:
        self.ops: dict[str, Op] = {}
        self.text = ""
        self._start = time.perf_counter()
        self._has_seen = False

    def __call__(self, name: str, module: ModuleOp) -> None:
        """Note the ops of a stage, numbers left out: behind ``fuse`` there are kernels alone."""
        self._has_seen = True
        if name == "capture" and logs.is_told("graph"):
            self.text = Texts().of(module)
        if name in ("capture", "fuse"):
            for op in module.walk():
                if isinstance(op, FlowOp) and not isinstance(op, ConstantOp) and (own := id_of(op)):
                    self.ops[own] = Op(label(op), loc_of(op))

    def graph(self, what: str, plan: Plan, kernels: Iterable[KernelOp], line: str = "") -> Graph:
        """Return what is known of a program whose plan is made.

        Args:
            what: the program is.
            plan: of it.
            kernels: of the plan, at least.
            line: of the function that it was traced from.
        """
        calls = [call for a in plan.actions if isinstance(a, Kernels) for call in a.calls]
        often = Counter(call.kernel for call in calls)
        lines = {call.kernel: call.loc for call in calls}
        sources = {op.sym_name.data: op.sources for op in kernels}
        known: list[Kernel] = []
        for index, count in sorted(often.items()):
            name = plan.kernels[index].name
            own = sources.get(name)
            ids = () if own is None else tuple(each.data for each in own)
            ops = _ops(ids, self.ops) or (Op(LAST, lines[index]),)
            known.append(Kernel(name, count, ops))
        library = tuple(Op(name_of(step), step.loc) for step in library_steps(plan))
        begins = (op.line for op in self.ops.values() if op.line != "unknown")
        line = line or next(begins, "")
        # What was planned elsewhere took no time here.
        seconds = time.perf_counter() - self._start if self._has_seen else 0.0
        return Graph(what, line, tuple(known), library, plan.arena_bytes, seconds, self.text)


LAST = "at"
"""What is said of a kernel whose ops another rank knows."""


def _ops(ids: Iterable[str], known: Mapping[str, Op]) -> tuple[Op, ...]:
    """Return ops by their ids, which have the path of the call in front once blocks are inlined."""
    own = (known.get(name) or known.get(name.rpartition("/")[2]) for name in ids)
    return tuple(op for op in own if op is not None)


def noted_plan(
    program: Program,
    options: Options,
    line: str = "",
    *,
    keep_ir: bool = False,
    extra: Mapping[str, str] | None = None,
) -> LoadedPlan:
    """Return the plan of a program, and note what it is.

    Args:
        program: its module is changed.
        options: with a record, or without.
        line: of the function that it was traced from.
        keep_ir: as :func:`irc.pipeline.make_plan` has it.
        extra: as that has it.

    Raises:
        IrcError: what planning raises; ``left-to-torch`` with ``strict`` for an op without a form.
    """
    if options.record is None and not options.strict:
        return make_plan(program, options, keep_ir=keep_ir, extra=extra)
    watch = Watch()
    plan = make_plan(program, options, keep_ir=keep_ir, extra=extra, on_stage=watch)
    kernels = [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]
    source = program.source if options.training is None else "a step"
    note_graph(watch, source, plan.plan, kernels, options, line=line)
    return plan


def note_graph(
    watch: Watch,
    source: str,
    plan: Plan,
    kernels: Iterable[KernelOp],
    options: Options,
    *,
    line: str = "",
    sizes: str = "",
) -> None:
    """Note a program whose plan is made, and the ops that it leaves to torch.

    Args:
        watch: was there when it was lowered.
        source: of the program.
        plan: of it.
        kernels: of the plan.
        options: with a record, or without.
        line: of the function that it was traced from.
        sizes: what there is to say of them.

    Raises:
        IrcError: ``left-to-torch`` with ``strict`` where there are such.
    """
    what = KINDS.get(source, "whole call") + (f", {sizes}" if sizes else "")
    noted_graph(watch, what, plan, kernels, options, line=line)


def noted_graph(
    watch: Watch,
    what: str,
    plan: Plan,
    kernels: Iterable[KernelOp],
    options: Options,
    *,
    line: str = "",
) -> None:
    """Note a program under its name; the arguments and errors are those of :func:`note_graph`.

    Raises:
        IrcError: ``left-to-torch`` with ``strict``.
    """
    left = [
        FallBack("op", name_of(step), NO_FORM, step.loc)
        for step in library_steps(plan)
        if falls_back(step)
    ]
    for each in left:
        refuse_strict(options, each)
    if options.record is None:
        return
    options.record.note(watch.graph(what, plan, kernels, line))
    for each in left:
        options.record.note(each)


def note_left(options: Options, left: FallBack) -> None:
    """Note what is left to torch.

    Raises:
        IrcError: ``left-to-torch`` with ``strict``.
    """
    refuse_strict(options, left)
    if options.record is not None:
        options.record.note(left)


def refuse_strict(options: Options, left: FallBack) -> None:
    """Refuse to leave anything to torch where the user has said ``strict``.

    Raises:
        IrcError: ``left-to-torch``.
    """
    if options.strict:
        raise IrcError(
            "left-to-torch",
            f"torch would run {left.what}, and strict=True forbids it",
            left.line,
            left.reason,
            "write it in ops that irc compiles, or leave out strict=True",
        )


@contextmanager
def noting(record: Record | None) -> Generator[None]:
    """Let what a block compiles be noted, where there is a record."""
    if record is None:
        yield
        return
    with record.noting():
        yield


def line_of(function: Callable[..., Any]) -> str:
    """Return where a function is written; empty for one that Python has no source of."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return "" if code is None else f"{shown(code.co_filename)}:{code.co_firstlineno}"


def call_kind(
    original: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    of: str = "",
) -> CallKind:
    """Return of which kind a call is.

    Args:
        original: the module or function that was compiled.
        args: of the call.
        kwargs: of the call.
        of: what is called, where that has to be said.
    """
    is_module = isinstance(original, nn.Module)
    run = original.forward if is_module else original
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    try:
        names = argument_names(run, args, dict(kwargs))
    except (TypeError, ValueError):  # a builtin has no signature
        names = [f"{number}" for number in range(len(leaves))]
    training = original.training if isinstance(original, nn.Module) else None
    return kind_of(names, leaves, training, of=of)


def kind_of(
    names: Sequence[str],
    leaves: Sequence[Any],
    training: bool | None,
    *,
    of: str = "",
    gradients: bool | None = None,
) -> CallKind:
    """Return of which kind a call is.

    Args:
        names: of its arguments, as they are flattened.
        leaves: their values.
        training: the flag of the module that is called; None of a function.
        of: what is called, where that has to be said.
        gradients: whether they are computed; by default, whether autograd records.
    """
    pairs = zip(names[:MOST_ARGUMENTS], leaves, strict=False)
    told = [f"{name}: {_value(leaf)}" for name, leaf in pairs]
    if len(leaves) > MOST_ARGUMENTS:
        told.append(f"and {len(leaves) - MOST_ARGUMENTS} more")
    on = next((device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)), "")
    cast = f"{torch.get_autocast_dtype(on)}" if on else ""
    if gradients is None:
        gradients = torch.is_grad_enabled()
    return CallKind(tuple(told), training, gradients, cast.removeprefix("torch."), of)


def _value(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        # The text of any other object is its class's own code.
        try:
            text = repr(leaf) if isinstance(leaf, PLAIN) else type(leaf).__name__
        except ValueError:  # Python writes no integer of more than 4,300 digits
            text = type(leaf).__name__
        return text if len(text) <= 40 else f"{text[:37]}..."
    wants = ", requires grad" if leaf.requires_grad else ""
    kind = f"{leaf.dtype}".removeprefix("torch.")
    if leaf.is_nested or is_lazy(leaf):
        return f"{kind} {'nested' if leaf.is_nested else 'of no shape yet'}{wants}"
    return f"{kind}{[*leaf.shape]}{wants}"


PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
"""Values whose text says what they are."""
