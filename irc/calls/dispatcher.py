"""The compiled versions of one module or function, and which of them a call is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from irc.calls.direct import MISS
from irc.calls.handed import LOOK, Handed
from irc.calls.handed_on import HandedOn
from irc.calls.left import can_be_left
from irc.calls.loop import Loop
from irc.calls.modes import forward, mode_here, num_dispatch_modes, num_function_modes
from irc.calls.noted import call_kind, line_of, note_left, noted_plan
from irc.calls.on_ranks import OnRanks
from irc.calls.open_version import OpenVersion
from irc.calls.recompiles import MAX_VERSIONS, Recompiles, Statistics
from irc.calls.refused import check_gradients, does_more, no_modes, released, too_many
from irc.calls.through_torch import ThroughTorch
from irc.calls.tracing import TRACING
from irc.calls.trial import is_tried
from irc.calls.version import Version, gathered
from irc.collection import collection_held
from irc.errors import IrcError
from irc.frontends.torch.capture import Captured, capture
from irc.frontends.torch.examples import check_devices
from irc.frontends.torch.hooks import layer_hooks
from irc.frontends.torch.in_place import in_place
from irc.frontends.torch.reach import reach
from irc.frontends.torch.settings import default_device, is_elsewhere
from irc.pipeline import Options
from irc.record import FallBack, Recompile, Record
from irc.runtime.executors import executor_of
from irc.runtime.prepared import Store
from irc.runtime.shared_memory import apart


class Dispatcher:
    """The compiled versions of one module or function.

    Args:
        original: a module, of which ``forward`` is what is compiled (whoever calls the compiled
            module runs its hooks), or a function.
        options: of the pipeline.
    """

    def __init__(self, original: Callable[..., Any], options: Options) -> None:
        self.original = original
        self._run = original.forward if isinstance(original, nn.Module) else original
        self.record = Record()
        self.options = replace(options, record=self.record)
        self._torchs = self._run if is_tried(options) else None
        self.versions: list[Version | OpenVersion | HandedOn] = []
        self._recompiles = Recompiles(is_open=bool(options.dynamic))
        self.on_ranks: OnRanks | None = None
        if options.mesh.num_ranks > 1:
            self.on_ranks = OnRanks(original, self._run, self.options, self.record, self.versions)
        self._through_torch = ThroughTorch(
            original, self._run, self.options, self.record, self._recompiles, self._torchs
        )
        self._store = Store(is_watched=True)
        self._hooks: tuple[dict[int, Any], ...] = ()
        self._is_broken = False
        self._effects = 0
        self.is_frozen = False

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the version whose guards the call meets; compile one where there is none."""
        is_seen = num_function_modes() or num_dispatch_modes() or forward._current_level >= 0
        if is_seen and (mode := mode_here()):
            return self._under_mode(args, kwargs, mode)
        looked: Handed | None = None
        if not kwargs:
            for version in self.versions:
                if version.direct is not None:
                    result = version.direct(args)
                    if result is not MISS:
                        return result
            for handed in self._through_torch.handed:
                result = MISS if handed.direct is None else handed.direct(args)
                if result is LOOK:
                    looked = handed
                    break
                if result is not MISS:
                    return result
        if self.is_frozen:
            return self._frozen(args, kwargs)
        if is_elsewhere() and self.options.backend == "cpu":
            return self._eager(args, kwargs, f"new tensors are made on '{default_device()}'")
        if torch.is_grad_enabled() and self._wants_gradients(args, kwargs):
            check_gradients(self.options)
            if self.on_ranks is not None:
                return self.on_ranks.recorded(args, kwargs)
            return self._through_torch(args, kwargs, looked=looked)
        if any(self._hooks):
            return self._through_torch(args, kwargs, looked=looked)
        if self.on_ranks is not None:
            kwargs = self.on_ranks.ordered(kwargs)
        version, _ = self._find(args, kwargs)
        if self.on_ranks is not None:
            ready = -1 if version is None else self.versions.index(version)
            self.on_ranks.agree(args, kwargs, ready)
        if is_new := version is None:
            if self._is_broken:
                return self._through_torch(args, kwargs, looked=looked)
            with TRACING, self.record.noting():
                # Another thread may have compiled it; and while one traces, guards fail.
                version, reason = self._find(args, kwargs)
                failed = None
                is_hooked = version is None and self._is_hooked()
                if version is None and not is_hooked and len(self.versions) < MAX_VERSIONS:
                    version, failed = self._add(args, kwargs, reason)
            if is_hooked:
                return self._through_torch(args, kwargs, looked=looked)
            if failed is not None:
                result = self._through_torch(args, kwargs, failed, looked)
                # What a first call does once, such as to fill an attribute, later ones may not do.
                self._is_broken = self._effects != 1
                return result
            if version is None:
                return self._eager(args, kwargs, reason)
        if (shared := version.shared(args, kwargs)) is not None:
            note_left(
                self.options, FallBack("call", "calls whose arguments share memory", shared, "")
            )
            self._recompiles.add_shared(shared)
            self._close_pending(args, kwargs)
            return self._run(*args, **kwargs)
        if not is_new:
            results = version(args, kwargs)
            self._close_pending(args, kwargs)  # open sizes have a plan for a further range
            return results
        with self.record.noting():
            results = version(args, kwargs)
        self._close(args, kwargs)
        return results

    @property
    def loop(self) -> Loop | None:
        """What calls share that record gradients on ranks; None where none do."""
        return None if self.on_ranks is None else self.on_ranks.loop

    def _close_pending(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if self.record.pending:
            self._close(args, kwargs)

    def _close(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Say which call has caused what was noted."""
        self.record.close(call_kind(self.original, args, kwargs))

    def _frozen(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a version that there is: without its weights the module runs in no other way."""
        version, reason = self._find(args, kwargs)
        if version is None:
            # Compiled for arguments that lie row by row: numbers are the same, if not strides.
            arguments = (tuple(args), dict(kwargs))
            rows: Any = pytree.tree_map_only(torch.Tensor, torch.Tensor.contiguous, arguments)
            version, _ = self._find(*rows)
            if isinstance(version, Version) and not version.layout.written:
                args, kwargs = rows
            else:
                version = None
        if version is not None:
            reason = version.shared(args, kwargs)
            if reason is None:
                return version(args, kwargs)
        raise released(reason)

    @property
    def recompiles(self) -> list[str]:
        """Why each version but the first was compiled."""
        return self._recompiles.reasons

    @property
    def statistics(self) -> Statistics:
        """How often it was compiled, and why."""
        recompiles = self._recompiles
        opened = tuple(v.work for v in self.versions if isinstance(v, OpenVersion))
        left = sum(v.left for v in self.versions if isinstance(v, (Version, OpenVersion)))
        count = len(self.versions) + (0 if self.loop is None else len(self.loop.versions))
        return Statistics(
            count, tuple(recompiles.reasons), recompiles.eager_calls, opened,
            left + len(self._through_torch.handed),
        )  # fmt: skip

    def _under_mode(self, args: Sequence[Any], kwargs: Mapping[str, Any], mode: str) -> Any:
        """Run a call whose ops a mode wants to see; nothing is compiled for it, and nothing kept.

        Raises:
            IrcError: ``weights-released`` of a frozen module; ``op-unsupported`` on a mesh.
        """
        if self.is_frozen:
            raise released(mode)
        if self.on_ranks is not None:
            raise no_modes(mode)
        note_left(self.options, FallBack("call", "calls under modes", mode, ""))
        self._close_pending(args, kwargs)
        self._recompiles.add_under_mode(mode)
        return self._run(*args, **kwargs)

    def _find(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Version | OpenVersion | HandedOn | None, str | None]:
        """Return the version for a call, or None and why the last one is not for it."""
        reason = None
        for version in self.versions:
            reason = version.mismatch(args, kwargs)
            if reason is None:
                return version, None
        return None, reason

    def _add(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], reason: str | None
    ) -> tuple[Version | OpenVersion | HandedOn | None, Exception | None]:
        """Return a new version, or why there is none for a call that torch can run all the same.

        Raises:
            IrcError: what is about the user's choices; on a mesh and a GPU, whatever it is.
        """
        try:
            version = self._compile(args, kwargs)
        except Exception as error:
            if not can_be_left(error, self.options):
                raise
            if (alone := self._runs_whole()) and isinstance(error, IrcError):
                raise error.noted(f"the graph may not break: {alone}") from None
            if alone:
                raise
            return None, error
        if reason is not None:
            self.record.note(Recompile(reason))
            self._recompiles.add(reason, self.versions[-1].resized(args, kwargs))
        self.versions.append(version)
        return version, None

    def _runs_whole(self) -> str:
        """Say why calls are one program or none; nothing where torch can run a part of them."""
        if self.options.mesh.num_ranks > 1:
            return "on a mesh a program is one graph"
        if self.options.backend != "cpu":
            return f"a program of the backend '{self.options.backend}' is one graph"
        return ""

    @collection_held()
    def _compile(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Version | OpenVersion | HandedOn:
        if self.on_ranks is not None:
            return self.on_ranks.compiled(args, kwargs)
        if self.options.backend == "cpu":
            check_devices(args, kwargs, "cpu")
        call = apart((tuple(args), dict(kwargs)))
        fixed = ""
        if self.options.dynamic:
            opened, fixed = self._opened(*call)
            if opened is not None:
                return opened
        captured = capture(self.original, *call, hooks=False, memory=True)
        self._check_effects(captured)
        if fixed:
            self._recompiles.add_fixed(fixed)
        if captured.is_entangled and self.options.backend == "cpu":
            return HandedOn(captured.guards, self._through_torch)
        captured = in_place(captured)
        plan = noted_plan(captured.program, self.options, line_of(self._run))
        tensors = captured.program.tensors
        executor = executor_of(plan, tensors, store=self._store, draws=True)
        return Version(captured, executor, self._torchs, self.record)

    def _check_effects(self, captured: Captured) -> None:
        """Leave calls to Dynamo that do more than a program can say."""
        if captured.effect and self.options.backend == "cpu":
            self._effects += 1
            raise does_more(captured.effect)

    def _opened(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[OpenVersion | None, str]:
        """Return a version that leaves sizes open; None, and why, where that cannot be.

        Raises:
            IrcError: ``size-fixed`` where sizes were named that the module fixes.
        """
        chosen: Any = self.options.dynamic
        try:
            captured = capture(
                self.original, args, kwargs, dynamic_shapes=chosen, keep_open=True, hooks=False,
                memory=True,
            )  # fmt: skip
        except IrcError as error:
            if chosen is not True:
                raise
            return None, str(error)
        self._check_effects(captured)
        if captured.is_entangled:
            return None, ""
        opened = captured.open is not None and bool(captured.open.places)
        version = OpenVersion(captured, self.options, self._store, self._torchs) if opened else None
        return version, ""

    def in_loop(self) -> None:
        """Let the module's parameters be DTensors, which an optimiser may take from now on."""
        assert self.on_ranks is not None
        self.on_ranks.in_loop()

    def hand_none(self) -> None:
        """Let no call go straight to torch any more."""
        self._through_torch.hand_none()

    def refresh(self) -> None:
        """See writes to weights that torch does not count; on a mesh all ranks call it."""
        if self.on_ranks is not None:
            self.on_ranks.refresh()
        for version in self.versions:
            version.refresh()

    def _eager(self, args: Sequence[Any], kwargs: Mapping[str, Any], reason: str | None) -> Any:
        """Run a call that no version fits and that is not worth one; caches come whole for it."""
        left = FallBack("call", "calls that no compiled version fits", reason or "", "")
        if self._recompiles.eager_calls == 0 or self.options.strict:
            note_left(self.options, left)
            self._close_pending(args, kwargs)
        self._recompiles.add_eager(reason)
        if self.loop is not None:
            raise too_many()
        if self.options.mesh.num_ranks > 1:
            args, kwargs = gathered(args, kwargs)
        return self._run(*args, **kwargs)

    def _wants_gradients(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        rest: list[Any] = [*kwargs.values()]
        for each in args:
            if not isinstance(each, torch.Tensor):
                rest.append(each)
            elif each.requires_grad:
                return True
        leaves = pytree.tree_leaves(rest) if rest else ()
        if any(isinstance(a, torch.Tensor) and a.requires_grad for a in leaves):
            return True
        if isinstance(self.original, nn.Module):
            return any(p.requires_grad for p in self.original.parameters())
        return reach(self.original).records()

    def _is_hooked(self) -> bool:
        """True where layers have hooks now and Dynamo can do what they do, which no version does.

        What the layers are is read anew: it may be that calls fit no version because of that.
        """
        if self.options.mesh.num_ranks > 1 or self.options.backend != "cpu":
            return False
        if isinstance(self.original, nn.Module):
            self._hooks = layer_hooks(self.original)
        return any(self._hooks)
