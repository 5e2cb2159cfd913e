"""Calls that torch's compiler runs: those that record gradients, have hooks, or break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from irc.calls.by_torch import ByTorch
from irc.calls.direct import handing
from irc.calls.handed import Handed, compiles, modes_of
from irc.calls.noted import call_kind, note_left
from irc.calls.recompiles import MAX_VERSIONS, Recompiles
from irc.calls.tracing import TRACING
from irc.calls.trial import Entry
from irc.frontends.torch.export import as_module, shape_specs
from irc.frontends.torch.hooks import on_all_modules
from irc.pipeline import Options
from irc.record import FallBack, Record

HOOKS_ON_ALL = "hooks on all modules want to see each module's call"
ENTRY_BEHIND = "torch alone is faster than what was compiled with Dynamo's way in"
NO_GRAPH = "torch runs all of it: there is no graph that irc has compiled"
"""Why calls go to torch."""


class ThroughTorch:
    """Runs calls where autograd records, layers have hooks, or a whole capture has failed.

    Args:
        original: a module, of which ``forward`` is what is compiled, or a function.
        run: what is compiled of it.
        options: of the pipeline.
        record: of what is done.
        recompiles: how often it is compiled, and why.
        torchs: what torch alone runs, where that is tried; else None.

    Attributes:
        handed: calls that go straight to torch, which was faster.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        run: Callable[..., Any],
        options: Options,
        record: Record,
        recompiles: Recompiles,
        torchs: Callable[..., Any] | None,
    ) -> None:
        self._original, self._run, self._options = original, run, options
        self._record, self._recompiles, self._torchs = record, recompiles, torchs
        self.handed: list[Handed] = []
        is_module = isinstance(original, nn.Module)
        self._parts = tuple(original.modules()) if is_module else ()
        self._entries: dict[tuple[bool, ...], Entry] = {}
        self._by_torch: ByTorch | None = None

    def __call__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], failed: Exception | None = None
    ) -> Any:
        """Run a call.

        Args:
            args: of the call.
            kwargs: of the call.
            failed: why it is no program, where one was tried.
        """
        if on_all_modules():
            note_left(self._options, FallBack("call", "calls", HOOKS_ON_ALL, ""))
            if self._record.pending:
                self._record.close(call_kind(self._original, args, kwargs))
            self._recompiles.add_hooks_on_all()
            return self._run(*args, **kwargs)
        if self._by_torch is None:
            with TRACING:  # torch looks its backends up without a lock of its own
                if self._by_torch is None:
                    self._check_dynamic(args, kwargs)
                    self._by_torch = ByTorch(self._run, self._options)
        if self._torchs is None or kwargs or not compiles():
            results = self._by_torch(args, kwargs, failed)
        else:
            entry = self._entries.setdefault(modes_of(self._parts), Entry())
            with entry.watched() as notes:
                results = self._by_torch(args, kwargs, failed)
            why = ENTRY_BEHIND if entry.is_behind(notes) else ""
            self._hand(args, self._torchs, NO_GRAPH if entry.has_no_graph() else why)
        if self._record.pending or not self._record.kinds:
            self._record.close(call_kind(self._original, args, kwargs))
        return results

    def _hand(self, args: Sequence[Any], torchs: Callable[..., Any], why: str) -> None:
        """Let calls like one go straight to torch, for a reason; no more where there is none."""
        looked = [each for each in self.handed if each.looks]
        for each in looked:
            each.looks = False
            if not why:
                self.handed.remove(each)
        if not why or looked or len(self.handed) == MAX_VERSIONS:
            return
        if (direct := handing(torchs, args, self._held())) is not None:
            self.handed.append(Handed(direct, self._parts))
            self._record.note(FallBack("timing", "calls of this kind", why, ""))

    def _held(self) -> list[torch.Tensor]:
        module = self._original
        if not isinstance(module, nn.Module):
            return []
        return [x for x in (*module.parameters(), *module.buffers()) if x.numel()]

    def _check_dynamic(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse names of sizes that there are not: Dynamo finds out by itself which vary."""
        dynamic = self._options.dynamic
        if dynamic is not None and dynamic is not True:
            shape_specs(as_module(self._original).forward, tuple(args), {**kwargs}, dynamic)
