"""A compiled version of a module for every size that its trace admits.

It stands for a :class:`irc.calls.version.Version` per size, made when a call of the size first
comes and kept while it is among those used last. All share the trace, the weights, what is prepared
of them, and (:mod:`irc.calls.open_plans`) the plan's template and the machine code of kernels that
take sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from irc.calls.direct import MISS, Direct
from irc.calls.noted import noting
from irc.calls.open_plans import OpenPlans, Work
from irc.calls.version import Version
from irc.frontends.torch.capture import Captured
from irc.frontends.torch.in_place import in_place
from irc.frontends.torch.open_sizes import OpenSizes
from irc.pipeline import Options
from irc.plan.schema import Plan
from irc.runtime.driver import BySizes
from irc.runtime.executors import driver_of
from irc.runtime.prepared import Store

Shapes: TypeAlias = tuple[tuple[int, ...], ...]


class OpenVersion:
    """Runs calls of any admitted size; what :class:`irc.calls.version.Version` is for one.

    Args:
        captured: with sizes left open.
        options: of the pipeline; one device.
        store: what is prepared of the weights, shared by all versions of the module.
        torchs: runs a call as eager mode does, where it may turn out faster.

    Attributes:
        accepts: None: calls go by :meth:`direct`, or the whole way.
    """

    accepts = None

    def __init__(
        self,
        captured: Captured,
        options: Options,
        store: Store,
        torchs: Callable[..., Any] | None = None,
    ) -> None:
        assert captured.open is not None
        self._open: OpenSizes = captured.open
        self._captured = in_place(captured)
        self._torchs, self._record = torchs, options.record
        self._plans = OpenPlans(
            self._open, lambda values: in_place(captured.at(values)).program, options
        )
        self._driver = driver_of(options.backend, captured.program.tensors, store=store, draws=True)
        self._bound = BySizes(self._bind)
        self._latest: Version | None = None

    @property
    def work(self) -> Work:
        """What was done so far."""
        return self._plans.work

    @property
    def left(self) -> int:
        """How many of the sizes are left to torch, which is faster."""
        return sum(each.left for each in self._bound.values())

    @property
    def plan(self) -> Plan:
        """What was run last."""
        assert self._latest is not None
        return self._latest.plan

    def direct(self, args: Sequence[Any]) -> Any:
        """Run a call of tensors alone whose sizes are known; MISS where it takes more."""
        try:
            version = self._bound.peek(tuple([x.shape for x in args]))
        except AttributeError:
            return MISS
        if version is None:
            return MISS
        direct: Direct | None = version.direct
        if direct is not None and (result := direct(args)) is not MISS:
            return result
        return version.run(args) if version.accepts is not None and version.accepts(args) else MISS

    def refresh(self) -> None:
        """See writes to weights that torch does not count."""
        for version in self._bound.values():
            version.refresh()

    def mismatch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Return None where the call can run, else the first reason why not."""
        reason = self._captured.guards.check(args, kwargs)
        if reason is not None:
            return reason
        shapes = self._shapes(args, kwargs)
        if shapes in self._bound:
            return None
        return self._open.refused(self._open.read(shapes), shapes)

    def resized(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[str, int, int, int] | None:
        """Return the argument, the dim and its two sizes where only that differs."""
        return self._captured.guards.resized(args, kwargs)

    def shared(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Say which input the call writes to while another lies over it; None where none does."""
        return self._version(args, kwargs).shared(args, kwargs)

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run on arguments that meet the guards."""
        return self._version(args, kwargs)(args, kwargs)

    def _shapes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shapes:
        return tuple(tuple(x.shape) for x in self._captured.flatten(args, dict(kwargs)))

    def _version(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Version:
        self._latest = version = self._bound.at(self._shapes(args, kwargs))
        return version

    def _bind(self, shapes: Shapes) -> Version:
        values = self._open.read(shapes)
        with noting(self._record):
            executor = self._driver.bind(self._plans.at(values))
        leaves = dict(zip(self._captured.tensor_leaves, shapes, strict=True))
        guards = self._captured.guards.closed(leaves)
        captured = replace(self._captured.numbered(values), guards=guards)
        return Version(captured, executor, self._torchs, self._record)
