"""The options of ops on one mesh: signatures and what they cost, once for all equal ops.

A search over many meshes need not look at every signature on each. What an op does along one axis
(split this factor, split that one, hold everything) and what came near the optimum on one mesh are
its *ways*; on the next mesh the axes choose among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from irc.cost.inner import inner_bytes
from irc.cost.model import ClusterCost
from irc.cost.rings import ring_bytes
from irc.dialects.flow import FlowOp
from irc.dialects.placement import AxisPlacement, Split
from irc.ops.strategies import RING
from irc.ops.work import Traffic
from irc.search.candidates import Traffics
from irc.search.prune import undominated
from irc.sharding.signatures import NdSignature, Signature, axis_signatures, signatures

Key: TypeAlias = object
"""Equal for ops that only differ in what they are called and whom they read."""

Way: TypeAlias = tuple[tuple[AxisPlacement, ...], tuple[AxisPlacement, ...], str]
"""What one axis does in an op: the placements of operands and results, and the strategy."""

Ways: TypeAlias = Mapping[Key, frozenset[Way]]

NAMES = frozenset({"loc", "id", "phase", "grad"})
"""Attributes that say nothing of what an op computes."""


class Known:
    """What is known of ops on one mesh of one cluster, by the numbers of their keys.

    Attributes:
        numbers: of keys, and of what their kernels move.
        traffics: what ops of functions move.
        signatures: of an op.
        seconds: of an op under a signature, by the identity of that; with it, so that it lives.
        inner: bytes that it holds inside, likewise.
        kept: of lists of signatures, those that are not dominated, with the list.
    """

    def __init__(self) -> None:
        self.numbers: dict[Key, int] = {}
        self.traffics: Traffics = {}
        self.signatures: dict[Key, list[NdSignature]] = {}
        self.seconds: dict[tuple[Key, int], tuple[NdSignature, float]] = {}
        self.inner: dict[tuple[Key, int], tuple[NdSignature, int]] = {}
        self.kept: dict[tuple[Key, tuple[int, ...]], tuple[list[NdSignature], list[int]]] = {}


class Options:
    """Signatures and prices, remembered.

    Args:
        cost: the cost model; its mesh is that of the signatures.
        key: what equal ops have in common.
        traffic: what ops move that are fused with others.
        ways: what axes may do in each op; None: anything.
        known: of the same cost model, where anything may be done; filled in.
    """

    def __init__(
        self,
        cost: ClusterCost,
        key: Callable[[FlowOp], Key],
        traffic: Mapping[FlowOp, Traffic],
        ways: Ways | None = None,
        known: Known | None = None,
    ) -> None:
        self.cost, self.key, self.traffic, self.ways = cost, key, traffic, ways
        known = known or Known()
        self._signatures, self._seconds, self._inner = known.signatures, known.seconds, known.inner
        self._kept = known.kept

    def signatures(self, op: FlowOp) -> list[NdSignature]:
        """Return the signatures of an op; equal ops have the same list."""
        key = self.key(op)
        if key not in self._signatures:
            self._signatures[key] = signatures(op, self.cost.mesh, choices=self._choices(op))
        return self._signatures[key]

    def _choices(self, op: FlowOp) -> list[Signature] | None:
        if self.ways is None:
            return None
        allowed = self.ways.get(self.key(op))
        if allowed is None:
            return None
        every = axis_signatures(op)
        # The first holds everything everywhere, which is always possible.
        return every[:1] + [s for s in every[1:] if (s.operands, s.results, s.strategy) in allowed]

    def seconds(self, op: FlowOp, signature: NdSignature) -> float:
        """Return the time of an op under one of its signatures."""
        key = (self.key(op), id(signature))
        if key not in self._seconds:
            seconds = self.cost.op_seconds(op, signature, self.traffic.get(op))
            self._seconds[key] = signature, seconds
        return self._seconds[key][1]

    def undominated(self, op: FlowOp, candidates: Sequence[NdSignature]) -> list[int]:
        """Return the indices of the signatures that can be part of a cheapest plan.

        Args:
            op: an op.
            candidates: of its signatures; see :func:`irc.search.prune.undominated`.
        """
        key = self.key(op), tuple(map(id, candidates))
        if key not in self._kept:
            seconds = [self.seconds(op, signature) for signature in candidates]
            # The list keeps its signatures, and so their identities.
            self._kept[key] = [*candidates], undominated(op, candidates, seconds, self.cost.boxing)
        return self._kept[key][1]

    def inner_bytes(self, op: FlowOp, signature: NdSignature) -> int:
        """Return what a rank holds inside of an op under one of its signatures."""
        key = (self.key(op), id(signature))
        if key not in self._inner:
            held = (
                ring_bytes(self.cost, op, signature)
                if RING in signature.strategy
                else inner_bytes(op, signature, self.cost.mesh)
            )
            self._inner[key] = signature, held
        return self._inner[key][1]


def ways_of(signature: NdSignature, axes: Iterable[str]) -> Iterable[Way]:
    """Yield what each axis does in a signature."""
    for index, axis in enumerate(axes):
        operands = tuple(_unordered(placement[axis]) for placement in signature.operands)
        results = tuple(_unordered(placement[axis]) for placement in signature.results)
        yield operands, results, signature.strategy[index]


def _unordered(placed: AxisPlacement) -> AxisPlacement:
    return Split(placed.dim) if isinstance(placed, Split) else placed


def op_key(op: FlowOp) -> Key:
    """Return name, attributes and types of an op, as something that compares fast."""
    every = {**op.properties, **op.attributes}
    named = tuple((name, every[name]) for name in sorted(every) if name not in NAMES)
    kinds = tuple(v.type for v in op.operands), tuple(v.type for v in op.results)
    return op.name, named, kinds
