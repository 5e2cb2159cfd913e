"""Calls that torch's compiler runs: those that record gradients, have hooks, or break."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from irc.calls.by_torch import ByTorch
from irc.calls.handed import Handed, Parts, compiles
from irc.calls.noted import call_kind, note_left
from irc.calls.recompiles import MAX_VERSIONS, Recompiles
from irc.calls.tracing import TRACING
from irc.calls.trial import Entry, has_saved_hooks
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
        handed: kinds of calls that go straight to torch, which was faster. It is replaced whole:
            another thread may be going over it.
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
        self.handed: tuple[Handed, ...] = ()
        self._parts, self._lock = Parts(original), threading.Lock()
        self._entries: dict[tuple[bool, ...], Entry] = {}
        self._by_torch: ByTorch | None = None

    def __call__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        failed: Exception | None = None,
        looked: Handed | None = None,
    ) -> Any:
        """Run a call.

        Args:
            args: of the call.
            kwargs: of the call.
            failed: why it is no program, where one was tried.
            looked: the kind that the call is of, where it looks whether that is still to be handed.
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
        if (is_saved := has_saved_hooks()) and not self.handed:
            self.hand_none()  # a checkpoint is to go the same way when it computes anew
        if self._torchs is None or kwargs or is_saved or not compiles():
            results = self._by_torch(args, kwargs, failed)
        else:
            modes = self._parts.modes()
            if modes is None or looked is not None:
                self._renew()
                modes = self._parts.modes() or ()
            entry = self._entries.setdefault(modes, Entry())
            with entry.watched() as notes:
                results = self._by_torch(args, kwargs, failed)
            why = ENTRY_BEHIND if entry.is_behind(notes) else ""
            why = NO_GRAPH if entry.has_no_graph() else why
            if looked in self.handed:
                self._keep(looked, is_behind=bool(why))
            elif why:
                self._hand(args, self._torchs, why)
        if self._record.pending or not self._record.kinds:
            self._record.close(call_kind(self._original, args, kwargs))
        return results

    def hand_none(self) -> None:
        """Let no call go straight to torch any more."""
        with self._lock:
            self._torchs, self.handed = None, ()

    def _renew(self) -> bool:
        """See which modules there are; what was learnt of others is forgotten."""
        with self._lock:
            if is_other := self._parts.renew():
                self.handed = ()
                self._entries = {}
        return is_other

    def _keep(self, looked: Handed, *, is_behind: bool) -> None:
        """Go on handing calls of a kind after a look, or do not."""
        with self._lock:
            if is_behind:
                looked.stay()
            else:
                self.handed = tuple([each for each in self.handed if each is not looked])

    def _hand(self, args: Sequence[Any], torchs: Callable[..., Any], why: str) -> None:
        """Let calls like one go straight to torch, for a reason."""
        if len(self.handed) >= MAX_VERSIONS or self._renew():
            return
        with self._lock:
            modes = self._parts.modes()
            if self._torchs is None or modes is None or len(self.handed) >= MAX_VERSIONS:
                return
            if any(each.is_for(args) for each in self.handed):
                return  # another thread was here
            kind = Handed(torchs, args, self._parts, modes)
            if kind.direct is None:
                return
            self.handed = (*self.handed, kind)
        self._record.note(FallBack("timing", "calls of this kind", why, ""))

    def _check_dynamic(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse names of sizes that there are not: Dynamo finds out by itself which vary."""
        dynamic = self._options.dynamic
        if dynamic is not None and dynamic is not True:
            shape_specs(as_module(self._original).forward, tuple(args), {**kwargs}, dynamic)
