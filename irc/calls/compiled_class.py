"""Classes of compiled modules: a module keeps its class's methods, and has another forward.

A compiled module is an instance of a subclass of the user's class and shares the original's
``__dict__``: parameters, their names, hooks, ``train()`` and ``state_dict()`` are the original's
own. Hooks on the module run around its compiled ``forward``, where torch calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, SupportsIndex, TypeVar
from weakref import ref

from torch import nn

from irc.calls.compiled import DISPATCHERS, shown
from irc.calls.dispatcher import Dispatcher
from irc.calls.feeding import Feeding
from irc.calls.loop import Loop, is_trained_on_ranks, loop_feeding, stays_plain
from irc.calls.tracing import is_traced
from irc.frontends.torch.faces import face, subclass
from irc.pipeline import Options
from irc.runtime import held
from irc.runtime.sharded_parameters import laid_as

C = TypeVar("C", bound=type[nn.Module])


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
        dispatcher = DISPATCHERS.get(self)
        if dispatcher is None:
            dispatcher = DISPATCHERS[self] = Dispatcher(face(cls, self), options)
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
        dispatcher = DISPATCHERS[compiled] = Dispatcher(module, options)
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
        dispatcher = DISPATCHERS.get(self)
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
    anonymous = _anonymous(cls, options)
    return anonymous.__new__(anonymous)
