"""Several entry points of one model, compiled together: prefill and decode.

Each entry is a plan of its own, for the calls of its example. They share the weights, of which a
rank holds one part however many plans read it, and the caches, which one entry leaves as the next
one takes them: placements of both are searched for all entries at once
(:mod:`irc.search.joint`), and each plan is then made with these pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from xdsl.dialects.builtin import ModuleOp

from irc.calls.noted import Watch, call_kind, line_of, note_graph, noted_plan, noting
from irc.calls.version import Version
from irc.cluster.load import find_cluster
from irc.constraints.patterns import Pattern
from irc.constraints.pins import Statement, constraint_text, parse_constraints, pin
from irc.cost.model import ClusterCost
from irc.dialects.builder import arguments, entry, results
from irc.dialects.placement import Placement
from irc.errors import IrcError, did_you_mean
from irc.frontends.torch.capture import Captured, capture
from irc.frontends.torch.in_place import in_place
from irc.frontends.torch.structure import paths
from irc.pipeline import Options, run_passes
from irc.plan.load import LoadedPlan
from irc.plugin import builtin_pass
from irc.program import Program
from irc.record import CallKind, Record
from irc.runtime import held
from irc.runtime.call_agreement import Call as RankCall
from irc.runtime.executor import Executor
from irc.runtime.executors import executor_of
from irc.runtime.prepared import Store
from irc.runtime.ranks import Ranks
from irc.runtime.same_program import marks_of
from irc.search.joint import HELD, place_together
from irc.search.solved import TooSmall

Call: TypeAlias = Sequence[Any]
"""What an entry is compiled from: a module or function, its arguments, its keyword arguments."""


@dataclass
class Captures:
    """The entries as captured, on their way to plans.

    Attributes:
        of: by name.
        own: for each entry, names of weights that are other tensors than those of an earlier one.
        options: of the pipeline.
        runs: how often each entry runs, relative to the others.
        kinds: of the calls of each entry.
        lines: where each entry's function is written.
    """

    of: dict[str, Captured]
    options: Options
    runs: Mapping[str, int]
    own: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    kinds: dict[str, CallKind] = field(default_factory=dict[str, CallKind])
    lines: dict[str, str] = field(default_factory=dict[str, str])
    _plans: dict[str, LoadedPlan] = field(default_factory=dict[str, LoadedPlan])

    @staticmethod
    def make(entries: Mapping[str, Call], options: Options, runs: Mapping[str, int]) -> Captures:
        """Capture every entry.

        Raises:
            IrcError: what capture raises; ``option-value`` for names that are no entries.
        """
        for name in runs:
            if name not in entries:
                raise _unknown(name, entries)
        by_name: dict[str, Captured] = {}
        captures = Captures(by_name, options, runs)
        with torch.no_grad():
            for name, call in entries.items():
                args: Sequence[Any] = call[1] if len(call) > 1 else ()
                kwargs: Mapping[str, Any] = call[2] if len(call) > 2 else {}
                captures.kinds[name] = call_kind(call[0], args, kwargs, of=f"entry '{name}'")
                captures.lines[name] = line_of(getattr(call[0], "forward", call[0]))
                by_name[name] = in_place(capture(call[0], args, dict(kwargs)))
        first: dict[str, torch.Tensor] = {}
        for name, captured in by_name.items():
            captures.own[name] = {
                own
                for own, tensor in captured.program.tensors.items()
                if first.setdefault(own, tensor).data_ptr() != tensor.data_ptr()
            }
        return captures

    def record_of(self, name: str) -> Record | None:
        """Return where is noted what is compiled for an entry."""
        record = self.options.record
        return None if record is None else record.of_kind(self.kinds[name])

    def plan(self, name: str, *, keep_ir: bool = False) -> LoadedPlan:
        """Return the plan of an entry; the first call makes all of them."""
        if not self._plans:
            if self.options.mesh.num_ranks > 1:
                self._place()
            alone = replace(self.options, pins="")
            for each, captured in self.of.items():
                own = replace(alone, record=self.record_of(each))
                line = self.lines.get(each, "")
                self._plans[each] = noted_plan(captured.program, own, line, keep_ir=keep_ir)
        return self._plans[name]

    def _place(self) -> None:
        """Pin what all entries have in common."""
        modules = {name: captured.program.module for name, captured in self.of.items()}
        for module in modules.values():
            run_passes(module, [builtin_pass("canonicalize")()])
        cost = ClusterCost(find_cluster(self.options.cluster), self.options.mesh)
        pins = self._pins()
        try:
            placed = place_together(
                modules, cost, own=self.own, runs=self.runs, pins=pins,
                memory_bytes=self.options.memory_bytes,
            )  # fmt: skip
        except TooSmall as error:
            raise IrcError(
                "sharding-infeasible",
                f"{', '.join(modules)} do not fit together: {error}",
                help="more ranks, a smaller cache, or fewer pins",
            ) from None
        for name, module in modules.items():
            common = _in_common(module)
            pinned = {n: p for n, p in placed[name].items() if n in common or not p.is_replicated}
            pin(module, pinned)

    def _pins(self) -> list[Statement]:
        """Return the constraints of the user, and that written buffers are everybody's."""
        text, source = constraint_text(self.options.pins)
        statements = list(parse_constraints(text, source))
        for statement in statements:
            if statement.kind != "argument":
                raise IrcError(
                    "option-value",
                    f"'{statement}' is about ops, and there are several entries",
                    help="pin arguments: weights, caches, and inputs as ENTRY/NAME",
                )
        whole = Pattern.of(Placement.replicated(self.options.mesh.names))
        written = {
            name
            for captured in self.of.values()
            for name in set(captured.states) - set(captured.mutated_inputs)
            if name in captured.program.tensors
        }
        return [*(Statement("pin", "argument", n, whole) for n in sorted(written)), *statements]


def _in_common(module: ModuleOp) -> set[str]:
    func = entry(module)
    named = [(role, name) for role, name, _ in arguments(func)] + results(func)
    return {name for role, name in named if role in HELD}


class Entries:
    """Compiled entries by name: ``entries["decode"](ids, cache)``; made by ``compile_entries``.

    Tensors of a cache object are split when they first come. Other tensors that an entry writes to
    and of which ranks hold parts have to be given so: :meth:`hold` splits them.
    """

    def __init__(
        self,
        versions: Mapping[str, Version],
        ranks: Ranks | None = None,
        record: Record | None = None,
    ) -> None:
        self._versions, self._ranks, self.record = dict(versions), ranks, record

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return what runs an entry on calls like its example.

        Raises:
            IrcError: ``option-value`` for another name.
        """
        if name not in self._versions:
            raise _unknown(name, self._versions)
        version = self._versions[name]

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.no_grad():
                reason = version.mismatch(args, kwargs)
                if self._ranks is not None:
                    call = RankCall(f"entry '{name}'", args, kwargs)
                    self._ranks.agree(call, 0 if reason is None else -1)
                if reason is not None:
                    raise IrcError(
                        "input-mismatch",
                        f"entry '{name}' was not compiled for this call",
                        because=reason,
                        help="compile an entry for it",
                    )
                return version(args, kwargs)

        return run

    def __iter__(self) -> Any:
        """Iterate over the names."""
        return iter(self._versions)

    def plan(self, name: str) -> Any:
        """Return the plan of an entry."""
        return self._versions[name].plan

    def hold(self, argument: str, value: Any) -> Any:
        """Return an argument's value as the ranks are to hold it between calls.

        Args:
            argument: its name in the entries.
            value: a tensor or a structure of them, whole and equal on every rank.
        """
        from torch.utils import _pytree as pytree

        leaves, spec = pytree.tree_flatten(value)
        names = [".".join((argument, *path)) for path in paths(value)]
        placed = list(leaves)
        for version in self._versions.values():
            layout, plan = version.layout, version.plan
            for index, placement in layout.split.items():
                for at, name in enumerate(names):
                    if name == layout.names[index] and not held.is_held(placed[at]):
                        placed[at] = held.split(
                            leaves[at], placement, plan.device_mesh, version.rank
                        )
        return pytree.tree_unflatten(placed, spec)


def compile_entries(
    entries: Mapping[str, Call], options: Options, runs: Mapping[str, int] | None = None
) -> Entries:
    """Compile entries for this process, or under torchrun for the ranks of the mesh.

    See :func:`irc.compile_entries`.
    """
    options = replace(options, record=Record())
    captures = Captures.make(entries, options, runs or {})
    ranks = Ranks.of(options.mesh) if options.mesh.num_ranks > 1 else None
    executors: dict[str, Executor] = {}
    if ranks is not None:
        own = {
            name: marks_of(captured.program.module, name, options, runs)
            for name, captured in captures.of.items()
        }
        for name, captured in captures.of.items():
            with noting(captures.record_of(name)):
                executors[name] = ranks.executor(
                    lambda name=name: captures.plan(name), captured.program.tensors, own[name]
                )
        if ranks.rank:  # rank 0 has planned them
            for name, run in executors.items():
                noted = replace(options, record=captures.record_of(name))
                note_graph(Watch(), captures.of[name].program.source, run.plan, (), noted)
    else:
        shared: dict[str, Any] = {"copies": {}, "store": Store()}
        for name, captured in captures.of.items():
            with noting(captures.record_of(name)):
                plan = captures.plan(name)
                executors[name] = executor_of(plan, captured.program.tensors, **shared)
    versions = {name: Version(captures.of[name], run) for name, run in executors.items()}
    return Entries(versions, ranks, options.record)


def _unknown(name: str, entries: Mapping[str, Any]) -> IrcError:
    return IrcError("option-value", f"no entry '{name}'", help=did_you_mean(name, entries))


def export_entries(
    entries: Mapping[str, Call],
    options: Options,
    out: str | Path,
    runs: Mapping[str, int] | None = None,
    *,
    force: bool = False,
) -> dict[str, tuple[LoadedPlan, Program]]:
    """Write a folder with a plan for each entry and one file of weights that all of them read.

    See :func:`irc.export_entries`.
    """
    from irc.plan.shared import save_plans

    captures = Captures.make(entries, options, runs or {})
    plans = {name: captures.plan(name, keep_ir=True) for name in entries}
    tensors: dict[str, Any] = {}
    names: dict[str, dict[str, str]] = {}
    for name, captured in captures.of.items():
        shared = {n: f"{name}/{n}" if _is_own(captured, captures.own[name], n) else n
                  for n in captured.program.tensors}  # fmt: skip
        names[name] = shared
        tensors |= {shared[n]: tensor for n, tensor in captured.program.tensors.items()}
    save_plans(out, plans, tensors=tensors, names=names, force=force)
    return {name: (plan, captures.of[name].program) for name, plan in plans.items()}


def _is_own(captured: Captured, own: set[str], name: str) -> bool:
    roles = {n: role for role, n, _ in arguments(entry(captured.program.module))}
    return name in own or roles.get(name) not in HELD
