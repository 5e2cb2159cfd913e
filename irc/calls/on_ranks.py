"""Calls of a compiled module or function on a mesh: what its ranks agree on, and compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from irc.calls.handed_on import HandedOn
from irc.calls.loop import Loop, samples_of
from irc.calls.noted import Watch, call_kind, line_of, note_graph, noted_plan
from irc.calls.open_version import OpenVersion
from irc.calls.recompiles import MAX_VERSIONS
from irc.calls.refused import parameters_are_whole, too_many
from irc.calls.tracing import TRACING
from irc.calls.version import PartVersion, Version, placements_for
from irc.constraints.pins import constraint_text, pin
from irc.frontends.torch.capture import capture
from irc.frontends.torch.guards import Guards
from irc.frontends.torch.in_place import in_place
from irc.frontends.torch.structure import argument_names
from irc.pipeline import Options
from irc.record import Record
from irc.runtime import held

if TYPE_CHECKING:
    from irc.runtime.call_agreement import Call
    from irc.runtime.ranks import Ranks


class OnRanks:
    """The part of a dispatcher that several ranks have in common.

    Args:
        original: a module, of which ``forward`` is what is compiled, or a function.
        run: what is compiled of it.
        options: of the pipeline.
        record: of what is done.
        versions: the dispatcher's, of calls without gradients.

    Attributes:
        loop: what calls that record gradients share; None before parameters are in parts.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        run: Callable[..., Any],
        options: Options,
        record: Record,
        versions: list[Version | OpenVersion | HandedOn],
    ) -> None:
        self._original, self._run, self._options = original, run, options
        self._record, self._versions = record, versions
        self._ranks: Ranks | None = None
        self.loop: Loop | None = None

    def ordered(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return keyword arguments in an order of their own where leaves are told by number."""
        if self.loop is not None and self.loop.feeding.is_local:
            return dict(sorted(kwargs.items()))
        return kwargs

    def agree(self, args: Sequence[Any], kwargs: Mapping[str, Any], ready: int) -> None:
        """See that all ranks make the same call, and have the same version for it.

        Args:
            args: of the call.
            kwargs: of the call.
            ready: the number of the version that this rank has; -1: none.
        """
        self._joined().agree(self._call(args, kwargs), ready)
        if self.loop is not None:
            self.loop.parameters.count_writes()

    def compiled(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Version:
        """Compile, linked to the versions before: weights and caches lie as these have put them.

        The versions cannot be searched together, because the call that the second one is for is
        not known when the first one runs. Where all calls are known beforehand, they can:
        :func:`irc.calls.entries.compile_entries`.
        """
        from irc.runtime.same_program import marks_of

        ranks, loop = self._joined(), self.loop
        if loop is None:
            blank = pytree.tree_map(held.blank, (tuple(args), dict(kwargs)))
            captured = in_place(capture(self._original, *blank, hooks=False))
        else:
            captured = in_place(loop.captured(args, kwargs))
        tensors = captured.flatten(args, dict(kwargs))
        known = ranks.placements if loop is None else loop.parameters.placements
        pin(captured.program.module, placements_for(captured, tensors, ranks.mesh, known))
        program = captured.program
        fed = [] if loop is None else loop.fed(captured, args, kwargs)
        samples, options = samples_of(program, fed), self._options
        if loop is not None and fed:
            text, _ = constraint_text(options.pins)
            options = replace(options, pins="\n".join([text, *loop.feeding.pins(fed)]))
        executor = ranks.executor(
            lambda: noted_plan(program, options, line_of(self._run), keep_ir=True),
            program.tensors if loop is None else {**program.tensors, **loop.parameters.whole()},
            marks_of(program.module, options),
            parts=None if loop is None else loop.parameters.parts(),
            fed=None if loop is None else lambda plan: loop.feeding.of_plan(plan, fed),
        )
        if not self._record.knows_graph:  # another rank has planned it
            note_graph(Watch(), program.source, executor.plan, (), self._options)
        if loop is not None:
            captured.guards = Guards.of(loop.module, args, dict(kwargs))
        if loop is not None and samples:
            return PartVersion(captured, executor, lambda x: loop.own_rows(x, samples))
        return Version(captured, executor)

    def in_loop(self) -> None:
        """Let the module's parameters be DTensors, which an optimiser may take from now on."""
        assert isinstance(self._original, nn.Module)
        self.loop = Loop(self._original, self._options, self._joined())

    def recorded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a call that records gradients on a mesh."""
        loop, ranks = self.loop, self._joined()
        if loop is None:
            raise parameters_are_whole(self._original)
        if loop.feeding.is_local:
            kwargs = dict(sorted(kwargs.items()))
        version = loop.find(args, kwargs)
        # Kinds of calls without gradients count from 0.
        ready = -1 if version is None else MAX_VERSIONS + loop.versions.index(version)
        goes_on = version is not None and version.collects_first
        ranks.agree(self._call(args, kwargs), ready, goes_on=goes_on)
        if version is None:
            if len(loop.versions) == MAX_VERSIONS:
                raise too_many()
            if not loop.versions:
                # They read the parameters that each rank had whole.
                self._versions.clear()
                ranks.wholes.clear()
            with TRACING:
                version = loop.add(args, kwargs)
            self._record.close(call_kind(self._original, args, kwargs))
        loop.check()
        return version(args, kwargs)

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Return what ranks compare of a call."""
        from irc.runtime.call_agreement import Call

        def names() -> list[str]:
            return argument_names(self._run, args, dict(sorted(kwargs.items())))

        what = "a call that records gradients" if torch.is_grad_enabled() else "a call without"
        loop = self.loop
        if loop is None or not loop.feeding.is_local:
            return Call(what, args, kwargs, names=names)
        own = loop.own(args, kwargs)
        return Call(what, args, kwargs, names=names, own=own, samples=loop.feeding.parts)

    def _joined(self) -> Ranks:
        from irc.runtime.ranks import Ranks

        if self._ranks is None:
            self._ranks = Ranks.of(self._options.mesh)
        return self._ranks

    def refresh(self) -> None:
        """See writes to weights that torch does not count; all ranks call it."""
        if self._ranks is not None:
            self._ranks.compare()
        for version in () if self.loop is None else self.loop.versions:
            version.refresh()
