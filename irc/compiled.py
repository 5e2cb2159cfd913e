"""Compiled modules and functions: the same object to their callers, other code inside.

A compiled module is an instance of a subclass of the user's class and shares the original's
``__dict__``: parameters, their names, hooks, ``train()`` and ``state_dict()`` are the original's
own. Each kind of call (shapes, dtypes, flags: see :mod:`irc.frontends.torch.guards`) is compiled
once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn

from irc.errors import IrcError
from irc.frontends.torch.capture import Captured, capture
from irc.pipeline import Options, make_plan
from irc.runtime.executor import Executor

C = TypeVar("C", bound=type[nn.Module])

MAX_VERSIONS = 16
"""Versions of one module before a call is an error: a sign of a shape that varies freely."""


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


_TRACING = _Tracing()


def _is_traced() -> bool:
    """True where the call is part of a trace: what is traced is then what the user wrote."""
    if torch.compiler.is_dynamo_compiling():
        return True
    tracing = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    return tracing and not _TRACING.is_elsewhere()


class Version:
    """One compiled version: guards, the way in and out, and what runs."""

    def __init__(self, captured: Captured, executor: Executor) -> None:
        self._captured = captured
        self._executor = executor
        self.mismatch = captured.guards.check

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run on arguments that meet the guards."""
        inputs = self._captured.flatten(args, dict(kwargs))
        outputs = self._executor(*inputs)
        if mutated := self._captured.mutated_inputs:
            # What the module writes into its arguments comes last, after what it returns.
            written = outputs[-len(mutated) :]
            for index, value in zip(mutated.values(), written, strict=True):
                inputs[index].copy_(value)
        return self._captured.unflatten(outputs)


class Dispatcher:
    """The compiled versions of one module or function.

    Args:
        original: what runs uncompiled; captured from.
        options: of the pipeline.
    """

    def __init__(self, original: Callable[..., Any], options: Options) -> None:
        self.original = original
        self.options = options
        self.versions: list[Version] = []
        self.recompiles: list[str] = []
        self._training: Callable[..., Any] | None = None

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the version whose guards the call meets; compile one where there is none."""
        if torch.is_grad_enabled() and self._wants_gradients(args, kwargs):
            return self._with_gradients(args, kwargs)
        version, _ = self._find(args, kwargs)
        if version is None:
            with _TRACING:
                # Another thread may have compiled it; and while one traces, guards fail.
                version, reason = self._find(args, kwargs)
                if version is None:
                    version = self._add(args, kwargs, reason)
        return version(args, kwargs)

    def _find(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Version | None, str | None]:
        """Return the version for a call, or None and why the last one is not for it."""
        reason = None
        for version in self.versions:
            reason = version.mismatch(args, kwargs)
            if reason is None:
                return version, None
        return None, reason

    def _add(self, args: Sequence[Any], kwargs: Mapping[str, Any], reason: str | None) -> Version:
        if reason is not None:
            self.recompiles.append(reason)
        if len(self.versions) == MAX_VERSIONS:
            raise IrcError(
                "input-mismatch",
                f"this would be version {MAX_VERSIONS + 1} of one compiled module",
                because=self.recompiles[-3:],
                help="pad what varies to a few sizes, or compile separate modules",
            )
        version = self._compile(args, kwargs)
        self.versions.append(version)
        return version

    def _compile(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Version:
        captured = capture(self.original, tuple(args), dict(kwargs))
        if self.options.mesh.num_ranks > 1:
            from irc.runtime.join import join

            executor = join(
                lambda: make_plan(captured.program, self.options),
                captured.program.tensors,
                self.options.mesh,
            )
        else:
            plan = make_plan(captured.program, self.options, keep_ir=False)
            executor = Executor(plan, captured.program.tensors)
        return Version(captured, executor)

    def _wants_gradients(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        given = (*args, *kwargs.values())
        if any(isinstance(a, torch.Tensor) and a.requires_grad for a in given):
            return True
        return isinstance(self.original, nn.Module) and any(
            p.requires_grad for p in self.original.parameters()
        )

    def _with_gradients(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run where autograd records: AOTAutograd splits forward and backward for irc."""
        if self.options.mesh.num_ranks > 1:
            raise IrcError(
                "op-unsupported",
                "a module compiled for several ranks runs without gradients",
                help="call it under torch.no_grad()",
            )
        training = self._training
        if training is None:
            training = self._training = cast("Any", torch).compile(self.original, backend="irc")
        return training(*args, **kwargs)


_DISPATCHERS: WeakKeyDictionary[nn.Module, Dispatcher] = WeakKeyDictionary()


def compiled_class(cls: C, options: Options) -> C:
    """Return a subclass whose forward is compiled."""

    @wraps(cls.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # Inside another capture this module is part of what is captured.
        if _is_traced():
            return cls.forward(self, *args, **kwargs)
        dispatcher = _DISPATCHERS.get(self)
        if dispatcher is None:
            dispatcher = _DISPATCHERS[self] = Dispatcher(_as(cls, self), options)
        return dispatcher(args, kwargs)

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), {**names, "forward": forward, "_irc_original": cls})  # type: ignore[return-value]


def compiled_instance(module: nn.Module, options: Options) -> nn.Module:
    """Return a module that shares everything with the given one but its forward."""
    return _as(compiled_class(type(module), options), module)


def compiled_function(function: Callable[..., Any], options: Options) -> Callable[..., Any]:
    """Return a function that is compiled for each kind of call."""
    dispatcher = Dispatcher(function, options)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if _is_traced():
            return function(*args, **kwargs)
        return dispatcher(args, kwargs)

    run._irc_original = function  # type: ignore[attr-defined]  # what irc.original returns
    return run


def original(compiled: Any) -> Any:
    """Return what was compiled: a module of the original class, or the function.

    Raises:
        IrcError: ``input-mismatch`` where the argument was not made by ``irc.compile``.
    """
    found = getattr(compiled, "_irc_original", None)
    if found is None:
        raise IrcError("input-mismatch", f"{type(compiled).__name__} was not made by irc.compile")
    return _as(found, compiled) if isinstance(compiled, nn.Module) else found


def dispatcher_of(module: nn.Module) -> Dispatcher | None:
    """Return the compiled versions of a module, None before its first call."""
    return _DISPATCHERS.get(module)


def _as(cls: type[nn.Module], module: nn.Module) -> nn.Module:
    """Return a second face of a module: another class, the same state."""
    face = object.__new__(cls)
    object.__setattr__(face, "__dict__", module.__dict__)
    return face
