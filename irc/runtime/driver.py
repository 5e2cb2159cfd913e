"""What carries out plans: a driver for each kind of machine, and what it makes of a plan.

A *driver* stands for one model on one rank of one kind of machine. It holds what all plans of the
model share there: the weights where the kernels read them, the threads, how ranks talk. It *binds*
a plan of fixed sizes: all that can be decided before a call is decided then. What comes back runs
calls. There are three:

* :class:`irc.runtime.torch_driver.TorchDriver`: tensors on the host;
* :class:`irc.runtime.gpu_driver.GpuDriver`: tensors on a GPU, or in Triton's interpreter;
* :class:`irc.runtime.native.driver.NativeDriver`: arrays on the host, without torch.

Plans of other kinds are made of such: one for each choice of sizes
(:mod:`irc.runtime.open_executor`), the regions of a host program (:mod:`irc.runtime.host`), the
functions of a plan of several programs (:mod:`irc.runtime.pipeline`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key")
Each = TypeVar("Each")
PlanT = TypeVar("PlanT", contravariant=True)
Value = TypeVar("Value")
BoundT = TypeVar("BoundT", covariant=True)

MAX_SIZES = 64
"""Choices of sizes that are kept bound; the one used longest ago is dropped."""


class BoundPlan(Protocol[Value]):
    """A plan of fixed sizes, bound to a driver; any thread may call it at any time."""

    def __call__(self, *inputs: Value) -> Sequence[Value]:
        """Run once on the inputs in the order of the plan, and return the outputs.

        Raises:
            IrcError: ``input-mismatch``.
        """
        ...


class Driver(Protocol[PlanT, BoundT]):
    """Carries out the plans of one model on one rank."""

    def bind(self, plan: PlanT, /) -> BoundT:
        """Return what runs a plan of fixed sizes.

        Raises:
            IrcError: ``input-mismatch`` where the weights are not the plan's, ``world-size``,
                ``backend-unknown``.
        """
        ...


class BySizes(Generic[Key, Each]):
    """What is bound for each choice of sizes: made at its first call, the latest kept.

    Any thread may ask. Two that ask for the same sizes wait for one that is made; nobody waits for
    sizes that are there.

    Args:
        make: binds for some sizes.
        most: how many are kept.
    """

    def __init__(self, make: Callable[[Key], Each], most: int | None = None) -> None:
        self._make, self._most = make, MAX_SIZES if most is None else most
        self._kept: OrderedDict[Key, Each] = OrderedDict()
        self._reading, self._making = threading.Lock(), threading.RLock()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def at(self, key: Key) -> Each:
        """Return what is bound for some sizes."""
        if (kept := self._used(key)) is None:
            with self._making:
                if (kept := self._used(key)) is None:
                    kept = [self._make(key)]
                    with self._reading:
                        self._kept[key] = kept[0]
                        if len(self._kept) > self._most:
                            self._kept.popitem(last=False)
        return kept[0]

    def peek(self, key: Key) -> Each | None:
        """Return what is bound for some sizes without counting it as used; None before that."""
        return self._kept.get(key)

    def values(self) -> list[Each]:
        """Return what is bound now."""
        with self._reading:
            return list(self._kept.values())

    def _used(self, key: Key) -> list[Each] | None:
        """Return what is bound as the one of a list, since it may be None itself."""
        with self._reading:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return [self._kept[key]]
