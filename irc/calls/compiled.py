"""Compiled modules and functions: the same object to their callers, other code inside.

A compiled module is an instance of a subclass of the user's class and shares the original's
``__dict__``: parameters, their names, hooks, ``train()`` and ``state_dict()`` are the original's
own. Hooks on the module run around its compiled ``forward``, where torch calls them. Each kind of
call (shapes, dtypes, flags: see :mod:`irc.frontends.torch.guards`) is compiled once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.utils import _pytree as pytree

from irc.calls.by_torch import ByTorch
from irc.calls.direct import MISS, Direct, handing
from irc.calls.feeding import Feeding
from irc.calls.handed_on import HandedOn
from irc.calls.left import can_be_left
from irc.calls.loop import Loop, is_trained_on_ranks, loop_feeding, samples_of, stays_plain
from irc.calls.noted import Watch, call_kind, line_of, note_graph, note_left, noted_plan
from irc.calls.open_version import OpenVersion
from irc.calls.recompiles import MAX_VERSIONS, Recompiles, Statistics
from irc.calls.trial import Entry, is_tried
from irc.calls.version import PartVersion, Version, gathered, placements_for
from irc.collection import collection_held
from irc.constraints.pins import constraint_text, pin
from irc.errors import IrcError
from irc.frontends.torch.capture import Captured, capture
from irc.frontends.torch.examples import check_devices
from irc.frontends.torch.export import as_module, shape_specs
from irc.frontends.torch.faces import face, subclass
from irc.frontends.torch.guards import Guards
from irc.frontends.torch.hooks import layer_hooks, on_all_modules
from irc.frontends.torch.in_place import in_place
from irc.frontends.torch.reach import reach
from irc.frontends.torch.settings import default_device, is_elsewhere
from irc.frontends.torch.structure import argument_names
from irc.pipeline import Options
from irc.plan.parts import PIPE
from irc.record import FallBack, Recompile, Record
from irc.report.calls import ModuleReport
from irc.runtime import held
from irc.runtime.executors import executor_of
from irc.runtime.prepared import Store
from irc.runtime.sharded_parameters import laid_as
from irc.runtime.shared_memory import apart

if TYPE_CHECKING:
    from irc.runtime.call_agreement import Call
    from irc.runtime.ranks import Ranks

C = TypeVar("C", bound=type[nn.Module])

HOOKS_ON_ALL = "hooks on all modules want to see each module's call"
ENTRY_BEHIND = "torch alone is faster than what was compiled with Dynamo's way in"
"""Why calls go to torch."""


class _Tracing:
    """Held while a module is traced: torch.export puts fake parameters into the module itself.

    Its flag ``is_compiling`` is the process's, too; this one knows which thread it is about.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._threads: list[int] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self._threads.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self._threads.pop()
        self._lock.release()

    def is_elsewhere(self) -> bool:
        """True, after it has ended, where another thread traced."""
        if self._threads in ([], [threading.get_ident()] * len(self._threads)):
            return False
        with self._lock:
            return True


TRACING = _Tracing()


def is_traced() -> bool:
    """True where the call is part of a trace: what is traced is then what the user wrote."""
    if torch.compiler.is_dynamo_compiling():
        return True
    tracing = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    return tracing and not TRACING.is_elsewhere()


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
        self.handed: list[Direct] = []
        self._entry = Entry()
        self.versions: list[Version | OpenVersion | HandedOn] = []
        self._recompiles = Recompiles(is_open=bool(options.dynamic))
        self._ranks: Ranks | None = None
        self.loop: Loop | None = None
        self._store = Store()
        self._by_torch: ByTorch | None = None
        self._hooks: tuple[dict[int, Any], ...] = ()
        self._is_broken = False
        self._effects = 0
        self.is_frozen = False

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the version whose guards the call meets; compile one where there is none."""
        if not kwargs:
            for version in self.versions:
                if version.direct is not None:
                    found = version.direct(args)
                    if found is not MISS:
                        return found
            for handed in self.handed:
                found = handed(args)
                if found is not MISS:
                    return found
        if self.is_frozen:
            return self._frozen(args, kwargs)
        if is_elsewhere() and self.options.backend == "cpu":
            return self._eager(args, kwargs, f"new tensors are made on '{default_device()}'")
        if torch.is_grad_enabled() and self._wants_gradients(args, kwargs):
            self._check_gradients()
            if self.options.mesh.num_ranks > 1:
                return self._recorded(args, kwargs)
            return self._through_torch(args, kwargs)
        if any(self._hooks):
            return self._through_torch(args, kwargs)
        if self.loop is not None and self.loop.feeding.is_local:
            kwargs = dict(sorted(kwargs.items()))  # leaves are told by number
        version, _ = self._find(args, kwargs)
        if self.options.mesh.num_ranks > 1:
            ready = -1 if version is None else self.versions.index(version)
            self._joined().agree(self._call(args, kwargs), ready)
            if self.loop is not None:
                self.loop.parameters.count_writes()
        if is_new := version is None:
            if self._is_broken:
                return self._through_torch(args, kwargs)
            with TRACING, self.record.noting():
                # Another thread may have compiled it; and while one traces, guards fail.
                version, reason = self._find(args, kwargs)
                failed = None
                is_hooked = version is None and self._is_hooked()
                if version is None and not is_hooked and len(self.versions) < MAX_VERSIONS:
                    version, failed = self._add(args, kwargs, reason)
            if is_hooked:
                return self._through_torch(args, kwargs)
            if failed is not None:
                found = self._through_torch(args, kwargs, failed)
                # What a first call does once, such as to fill an attribute, later ones may not do.
                self._is_broken = self._effects != 1
                return found
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
            given = (tuple(args), dict(kwargs))
            rows: Any = pytree.tree_map_only(torch.Tensor, torch.Tensor.contiguous, given)
            version, _ = self._find(*rows)
            if isinstance(version, Version) and not version.layout.written:
                args, kwargs = rows
            else:
                version = None
        if version is not None:
            reason = version.shared(args, kwargs)
            if reason is None:
                return version(args, kwargs)
        raise IrcError(
            "weights-released",
            f"a frozen module is called in a way in which it was not called before: {reason}",
            because="irc.freeze has released the weights, so it cannot be compiled again",
            help="call it in each way before irc.freeze",
        )

    @property
    def recompiles(self) -> list[str]:
        """Why each version but the first was compiled."""
        return self._recompiles.reasons

    @property
    def statistics(self) -> Statistics:
        """How often it was compiled, and why."""
        found = self._recompiles
        opened = tuple(v.work for v in self.versions if isinstance(v, OpenVersion))
        left = sum(v.left for v in self.versions if isinstance(v, (Version, OpenVersion)))
        count = len(self.versions) + (0 if self.loop is None else len(self.loop.versions))
        return Statistics(
            count, tuple(found.reasons), found.eager_calls, opened,
            left + len(self.handed),
        )  # fmt: skip

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
        if self.options.mesh.num_ranks > 1:
            return self._compile_for_ranks(args, kwargs)
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
            raise IrcError(
                "capture-failed",
                "a call changes more than its arguments and what the module holds",
                because=captured.effect,
                help="return what is to be kept, or call it where Python may run in between",
            )

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
        made = OpenVersion(captured, self.options, self._store, self._torchs) if opened else None
        return made, ""

    def _compile_for_ranks(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Version:
        """Compile, linked to the versions before: weights and caches lie as these have put them.

        The versions cannot be searched together, because the call that the second one is for is
        not known when the first one runs. Where all calls are known beforehand, they can:
        :func:`irc.calls.entries.compile_entries`.
        """
        from irc.runtime.same_program import marks_of

        ranks, loop = self._joined(), self.loop
        if loop is None:
            blank = pytree.tree_map(held.blank, (tuple(args), dict(kwargs)))
            captured = in_place(capture(self.original, *blank, hooks=False))
        else:
            captured = in_place(loop.captured(args, kwargs))
        given = captured.flatten(args, dict(kwargs))
        known = ranks.placements if loop is None else loop.parameters.placements
        pin(captured.program.module, placements_for(captured, given, ranks.mesh, known))
        program = captured.program
        fed = [] if loop is None else loop.fed(captured, args, kwargs)
        samples, options = samples_of(program, fed), self.options
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
        if not self.record.knows_graph:  # another rank has planned it
            note_graph(Watch(), program.source, executor.plan, (), self.options)
        if loop is not None:
            captured.guards = Guards.of(loop.module, args, dict(kwargs))
        if loop is not None and samples:
            return PartVersion(captured, executor, lambda x: loop.own_rows(x, samples))
        return Version(captured, executor)

    def in_loop(self) -> None:
        """Let the module's parameters be DTensors, which an optimiser may take from now on."""
        assert isinstance(self.original, nn.Module)
        self.loop = Loop(self.original, self.options, self._joined())

    def _recorded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a call that records gradients on a mesh."""
        loop, ranks = self.loop, self._joined()
        if loop is None:
            raise _is_whole(self.original)
        if loop.feeding.is_local:
            kwargs = dict(sorted(kwargs.items()))
        version = loop.find(args, kwargs)
        # Kinds of calls without gradients count from 0.
        ready = -1 if version is None else MAX_VERSIONS + loop.versions.index(version)
        goes_on = version is not None and version.collects_first
        ranks.agree(self._call(args, kwargs), ready, goes_on=goes_on)
        if version is None:
            if len(loop.versions) == MAX_VERSIONS:
                raise _too_many()
            if not loop.versions:
                # They read the parameters that each rank had whole.
                self.versions.clear()
                ranks.wholes.clear()
            with TRACING:
                version = loop.add(args, kwargs)
            self._close(args, kwargs)
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
            self._ranks = Ranks.of(self.options.mesh)
        return self._ranks

    def refresh(self) -> None:
        """See writes to weights that torch does not count; on a mesh all ranks call it."""
        if self._ranks is not None:
            self._ranks.compare()
        for version in (*self.versions, *([] if self.loop is None else self.loop.versions)):
            version.refresh()

    def _eager(self, args: Sequence[Any], kwargs: Mapping[str, Any], reason: str | None) -> Any:
        """Run a call that no version fits and that is not worth one; caches come whole for it."""
        left = FallBack("call", "calls that no compiled version fits", reason or "", "")
        if self._recompiles.eager_calls == 0 or self.options.strict:
            note_left(self.options, left)
            self._close_pending(args, kwargs)
        self._recompiles.add_eager(reason)
        if self.loop is not None:
            raise _too_many()
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
        given = pytree.tree_leaves(rest) if rest else ()
        if any(isinstance(a, torch.Tensor) and a.requires_grad for a in given):
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

    def _check_gradients(self) -> None:
        """Refuse to record gradients where no backward pass is planned."""
        if PIPE in self.options.mesh.names:
            raise IrcError(
                "op-unsupported",
                f"a module compiled for a mesh with an axis '{PIPE}' runs without gradients",
                because="stages work on several micro-batches at a time, so that a call of one "
                "batch has no backward pass of its own",
                help="train it by irc.compile_step, or leave the axis out",
            )
        if self.options.backend != "cpu":
            raise IrcError(
                "op-unsupported",
                f"a module compiled by backend '{self.options.backend}' runs without gradients",
                help="call it under torch.no_grad(), or compile it with the backend cpu",
            )

    def _through_torch(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], failed: Exception | None = None
    ) -> Any:
        """Run where autograd records, layers have hooks, or a whole capture has failed."""
        if on_all_modules():
            note_left(self.options, FallBack("call", "calls", HOOKS_ON_ALL, ""))
            self._close_pending(args, kwargs)
            self._recompiles.add_hooks_on_all()
            return self._run(*args, **kwargs)
        if self._by_torch is None:
            with TRACING:  # torch looks its backends up without a lock of its own
                if self._by_torch is None:
                    self._check_dynamic(args, kwargs)
                    self._by_torch = ByTorch(self._run, self.options)
        if self._torchs is None or kwargs or len(self.handed) == MAX_VERSIONS:
            results = self._by_torch(args, kwargs, failed)
        else:
            with self._entry.watched() as notes:
                results = self._by_torch(args, kwargs, failed)
            if self._entry.is_behind(notes):
                handed = handing(self._torchs, args, self._held())
                if handed:
                    self.handed.append(handed)
                    self.record.note(FallBack("timing", "calls of this kind", ENTRY_BEHIND, ""))
        if self.record.pending or not self.record.kinds:
            self._close(args, kwargs)
        return results

    def _held(self) -> list[torch.Tensor]:
        module = self.original
        if not isinstance(module, nn.Module):
            return []
        return [x for x in (*module.parameters(), *module.buffers()) if x.numel()]

    def _check_dynamic(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse names of sizes that there are not: Dynamo finds out by itself which vary."""
        dynamic = self.options.dynamic
        if dynamic is not None and dynamic is not True:
            shape_specs(as_module(self.original).forward, tuple(args), {**kwargs}, dynamic)


def _is_whole(original: object) -> IrcError:
    if isinstance(original, nn.Module):
        return IrcError(
            "op-unsupported",
            "gradients are recorded, and every rank has the parameters whole",
            because="they become parts that ranks hold in irc.compile, before an optimizer takes "
            "them, where the module is in training mode and runs under torchrun",
            help="m = irc.compile(model.train(), mesh=...), then the optimizer of m.parameters(); "
            "or call it under torch.no_grad()",
        )
    return IrcError(
        "op-unsupported",
        "a function compiled for several ranks runs without gradients",
        because="what it reads of modules outside of it cannot become parts that ranks hold",
        help="compile the module, or call the function under torch.no_grad()",
    )


def _too_many() -> IrcError:
    return IrcError(
        "input-mismatch",
        f"this would be version {MAX_VERSIONS + 1} of one module on a mesh",
        help="pad batches to a few sizes",
    )


_DISPATCHERS: WeakKeyDictionary[nn.Module, Dispatcher] = WeakKeyDictionary()


def compiled_class(cls: C, options: Options) -> C:
    """Return a subclass whose forward is compiled."""
    # Looking a module up in a weak dictionary costs as much as all guards of a small one.
    recent: tuple[Callable[[], nn.Module | None], Dispatcher] | None = None

    @wraps(cls.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal recent
        # Inside another capture this module is part of what is captured.
        if is_traced():
            return cls.forward(self, *args, **kwargs)
        known = recent
        if known is not None and known[0]() is self:
            return known[1](args, kwargs)
        dispatcher = _DISPATCHERS.get(self)
        if dispatcher is None:
            dispatcher = _DISPATCHERS[self] = Dispatcher(face(cls, self), options)
            if options.mesh.num_ranks > 1 and (
                any(map(held.is_held, self.parameters()))  # a copy of one that ranks hold in parts
                or (stays_plain(options) and is_trained_on_ranks(self, options))
            ):
                dispatcher.in_loop()
        recent = (ref(self), dispatcher)
        return dispatcher(args, kwargs)

    more = {} if hasattr(cls, "_repr_html_") else {"_repr_html_": shown}
    return subclass(cls, forward=forward, _irc_original=cls, **more)


def compiled_instance(module: nn.Module, options: Options) -> nn.Module:
    """Return a module that shares everything with the given one but its forward.

    On a mesh the parameters of one that is to be trained become DTensors, in both.
    """
    compiled = face(_anonymous(type(module), options), module)
    if is_trained_on_ranks(module, options):
        dispatcher = _DISPATCHERS[compiled] = Dispatcher(module, options)
        dispatcher.in_loop()
    return compiled


def _anonymous(cls: type[nn.Module], options: Options) -> type[nn.Module]:
    """Return a compiled class that no module holds: its objects are stored as what makes them."""

    def reduce(self: nn.Module, protocol: SupportsIndex) -> Any:
        kept = super(cls, self).__reduce_ex__(protocol)
        return (_restored, (cls, options), *kept[2:])

    # Of a mesh of one rank, too: a script runs on as many processes as there are.
    more = on_ranks(cls, options) if options.mesh.names else {}
    return subclass(compiled_class(cls, options), __reduce_ex__=reduce, _irc_original=cls, **more)


def on_ranks(cls: type[nn.Module], options: Options) -> dict[str, Any]:
    """Return the methods that a module of a class has besides where ranks hold its parameters."""

    def no_sync(self: nn.Module) -> AbstractContextManager[None]:
        dispatcher = _DISPATCHERS.get(self)
        loop = None if dispatcher is None else dispatcher.loop
        return nullcontext() if loop is None else loop.no_sync()

    @wraps(cls.load_state_dict)
    def load_state_dict(
        self: nn.Module, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        return cls.load_state_dict(self, laid_as(self, state_dict), *args, **kwargs)

    def feeding(self: nn.Module) -> Feeding:
        """Return what this rank is to be given of each batch: see :class:`Feeding`.

        With ``batch="global"`` it is the whole batch. With ``batch="local"`` it is this rank's part
        of the samples: ``part`` of ``count``, the same as for all ranks of ``shares[part]``.
        """
        from irc.runtime.join import own_rank

        return loop_feeding(options, own_rank())

    no_sync.__doc__ = Loop.no_sync.__doc__
    # What a class has of its own is not taken from it.
    more = {"no_sync": no_sync, "feeding": feeding}
    return {"load_state_dict": load_state_dict} | {
        name: method for name, method in more.items() if not hasattr(cls, name)
    }


def _restored(cls: type[nn.Module], options: Options) -> nn.Module:
    made = _anonymous(cls, options)
    return made.__new__(made)


def original(compiled: Any) -> Any:
    """Return what was compiled: a module of the original class, or the function.

    Raises:
        IrcError: ``input-mismatch`` where the argument was not made by ``irc.compile``.
    """
    found = getattr(compiled, "_irc_original", None)
    if found is None:
        raise IrcError("input-mismatch", f"{type(compiled).__name__} was not made by irc.compile")
    return face(found, compiled) if isinstance(compiled, nn.Module) else found


def dispatcher_of(module: nn.Module) -> Dispatcher | None:
    """Return the compiled versions of a module, None before its first call."""
    return _DISPATCHERS.get(module)


def statistics(compiled: Any) -> Statistics:
    """Return how often a compiled module or function has been compiled so far, and why.

    Raises:
        IrcError: ``input-mismatch`` where the argument was not made by ``irc.compile``.
    """
    found = getattr(compiled, "_irc_dispatcher", None)
    if isinstance(compiled, nn.Module):
        original(compiled)
        found = dispatcher_of(compiled)
        return Statistics(0, (), 0) if found is None else found.statistics
    if found is None:
        raise IrcError("input-mismatch", f"{type(compiled).__name__} was not made by irc.compile")
    return found.statistics


def is_compiled(given: Any) -> bool:
    """True for a module, function or method that ``irc.compile`` has returned, or a class."""
    return hasattr(getattr(given, "__func__", given), "_irc_original")


def explained(compiled: Any) -> tuple[str, Record | None, Options | None]:
    """Return the name of a compiled module or function, what was noted, and its options.

    A module has neither before its first call.

    Raises:
        IrcError: ``input-mismatch`` where the argument is a compiled class.
    """
    target: Any = getattr(compiled, "__func__", compiled)  # of a method
    if isinstance(target, type) and hasattr(target, "_irc_original"):
        name = f"{target.__name__}"
        raise IrcError(
            "input-mismatch",
            f"'{name}' is a class, and each of its modules is compiled by itself",
            help=f"model = {name}(...); model(...); irc.explain(model)",
        )
    if isinstance(target, nn.Module):
        name, known = type(original(target)).__name__, dispatcher_of(target)
        return (name, None, None) if known is None else (name, known.record, known.options)
    name = getattr(compiled, "__qualname__", type(original(target)).__name__)
    dispatcher: Dispatcher = getattr(target, "_irc_dispatcher")  # noqa: B009
    return name, dispatcher.record, dispatcher.options


def module_report(compiled: Any) -> ModuleReport:
    """Return what was compiled of a module or function so far; raises as :func:`explained`."""
    name, record, options = explained(compiled)
    return ModuleReport.of(name, record, backend="" if options is None else options.backend)


def shown(compiled: Any) -> str:
    """Return as a notebook shows it what was compiled of a module or function; never raises."""
    from irc.report.html.notebook import shown_module

    return shown_module(lambda: module_report(compiled), repr(compiled))


def refresh(compiled: Any) -> None:
    """Let a compiled module or function see what was written into its weights through ``.data``.

    Kernels read some weights from packed copies. torch counts writes to a tensor, and a copy of an
    older count is made again before the next call; only writes through ``.data`` (and through
    memory that torch does not know to be shared) are not counted.

    Raises:
        IrcError: ``input-mismatch`` where the argument was not made by ``irc.compile``.
    """
    original(compiled)
    found = getattr(compiled, "_irc_dispatcher", None)
    if isinstance(compiled, nn.Module):
        found = dispatcher_of(compiled)
    if found is not None:
        found.refresh()
