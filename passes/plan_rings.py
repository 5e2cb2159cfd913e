"""Pass ``plan-rings``: in which way attention over a split sequence goes round its ranks."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from irc.cluster.load import THIS_HOST, find_cluster
from irc.cost.model import ClusterCost
from irc.cost.rings import ring_block, ring_prices
from irc.dialects.flow import ExternOp, FlowOp, id_of, loc_of
from irc.dialects.whole_attention import AttentionOp
from irc.errors import IrcError, did_you_mean
from irc.ops.attention_ops import ATTENTION, BACKWARD
from irc.ops.strategies import RING
from irc.sharding.mesh import mesh_of, parse_mesh
from irc.sharding.ring_told import RingFacts, tell_rings
from irc.sharding.ring_ways import KEYS, WAY, WAYS, ways_of
from irc.sharding.ring_work import ring_work
from irc.sharding.signatures import NdSignature, match_signature


@dataclass(frozen=True)
class PlanRingsPass(ModulePass):
    """Choose how attention goes round, where the sequence of q, k and v is split alike.

    Ranks compute a block of rows and keys at a time and join results by their log-sums, while what
    travels is on its way: forward and backward alike, each of its own. The ways are

    * ``keys``: keys and values go to the next rank (ring attention, Liu et al., arXiv:2310.01889);
      under a causal mask the last rank computes twice what they do in the mean;
    * ``zigzag``: the same, and each of n ranks works on an early chunk of 2n and on its mirror, so
      that all compute as much; ranks r and n - 1 - r swap half of their shards before and after;
    * ``tokens``: queries go to the next rank, and results straight back to whom they belong
      (TokenRing, Wang et al., arXiv:2412.20501), while keys and their gradients stay;
    * ``zigzag-tokens``: both.

    The way is the one whose program ends first, listed on compute and link with what they slow each
    other down; on one host, where the transport takes the cores that compute, the one whose ops add
    up to least. Whether there is a ring at all, in place of gathered keys, the search of placements
    has decided by the same price. A mask beside the causal one leaves ``keys``, and zigzag takes an
    even number of rows a rank. Without this pass all rings are ``keys``, though the search took
    them for the best of all. Sums are those of plain attention in another order.

    Run: plan-rings{way=zigzag}

    Before:
    ```mlir
    builtin.module attributes {irc.mesh = "seq=2"} {
    func.func @forward(%q: !flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]>)
        -> !flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]> {
      %y = flow.attention(%q, %q, %q) {is_causal = true, scale = 0.5 : f64, id = "n0",
              loc = "m.py:1"}
          : (!flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]>,
             !flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]>,
             !flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]>)
          -> !flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]>
      func.return %y : !flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]>
    }
    }
    ```

    After:
    ```mlir
    builtin.module attributes {irc.mesh = "seq=2",
        irc.rings = [{id = "n0", way = "zigzag", axis = "seq", loc = "m.py:1",
            ways = [], seconds = array<f64>,
            flops = array<i64: 540, 540>, on_bytes = array<i64: 256, 256>,
            back_bytes = array<i64: 0, 0>, received_bytes = array<i64: 256, 256>}]} {
    func.func @forward(%q: !flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]>)
        -> !flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]> {
      %y = flow.attention(%q, %q, %q) {is_causal = true, scale = 0.5 : f64, id = "n0",
              loc = "m.py:1", ring = "zigzag"}
          : (!flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]>,
             !flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]>,
             !flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]>)
          -> !flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]>
      func.return %y : !flow.tensor<[1, 1, 8, 4], f32, [seq = S(2)]>
    }
    }
    ```

    ``lower-boxing`` obeys what the op says. ``irc.rings`` of the module tells what each rank
    computes and sends, and what each way would take, unless one was asked for.

    Attributes:
        cluster: whose links and kernels are to be used; empty: those that placements were searched
            for, or else this host's.
        within: the mesh of the whole run, where the program is one stage's.
        way: of every ring that can go so; empty: the best of each, by price.
        only: ids of the ops that may go another way than ``keys``, with ``+`` between; empty: all.
            With a way, one of them that cannot go so is an error.
        is_part: the program is one of several stages, of which others may have what ``only`` names.
    """

    name = "plan-rings"
    level: ClassVar[str] = "flow+sbp"
    after: ClassVar[str] = "auto-shard"

    cluster: str = ""
    within: str = ""
    way: str = ""
    only: str = ""
    is_part: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.way and self.way not in WAYS:
            raise IrcError(
                "option-value",
                f"plan-rings{{way={self.way}}}: no ring goes so",
                help=did_you_mean(self.way, WAYS) or f"it is one of {', '.join(WAYS)}",
            )
        mesh, only = mesh_of(op), frozenset(filter(None, self.only.split("+")))
        if not mesh.axes:
            return
        rings: dict[FlowOp, NdSignature] = {}
        for each in op.walk():
            if not isinstance(each, FlowOp) or WAY in each.attributes or not _may_ring(each):
                continue
            signature = match_signature(each, mesh)
            if signature is not None and RING in signature.strategy:
                rings[each] = signature
        if not self.is_part:
            _check_known(only, {id_of(each) for each in op.walk() if WAY in each.attributes}
                         | {id_of(each) for each in rings})  # fmt: skip
        if not rings:
            return
        within = parse_mesh(self.within) if self.within else None
        cost = ClusterCost(find_cluster(self.cluster or _searched(op)), mesh, within=within)
        tell_rings(op, [self._plan(each, s, cost, only) for each, s in rings.items()])

    def _plan(
        self, op: FlowOp, signature: NdSignature, cost: ClusterCost, only: Collection[str]
    ) -> RingFacts:
        ways: Mapping[str, float] = {}
        if not self.way:
            ways = {way: price.seconds for way, price in ring_prices(cost, op, signature).items()}
        way = self._chosen(op, ways_of(op, signature, cost.mesh), ways, only)
        op.attributes[WAY] = StringAttr(way)
        axis, size = cost.mesh.axes[signature.strategy.index(RING)]
        work = ring_work(ring_block(op, signature, cost, way, 0), axis, size)
        return RingFacts(id_of(op), way, axis, loc_of(op), ways, work)

    def _chosen(
        self, op: FlowOp, able: Sequence[str], seconds: Mapping[str, float], only: Collection[str]
    ) -> str:
        if only and id_of(op) not in only:
            return KEYS
        if not self.way:
            return min(seconds, key=seconds.__getitem__)
        if self.way in able:
            return self.way
        if only:
            raise IrcError(
                "option-value",
                f"plan-rings: only: '{id_of(op)}' does not go by {self.way}",
                where=loc_of(op),
                because="zigzag takes a causal mask, no other, and an even number of rows a rank;"
                " tokens take no mask but the causal one",
                help=f"it goes by {', '.join(able)}",
            )
        return KEYS


def _searched(module: ModuleOp) -> str:
    """Return the cluster that auto-shard says in its report, or else this host."""
    report = module.attributes.get("irc.plan_cost")
    return json.loads(report.data)["cluster"] if isinstance(report, StringAttr) else THIS_HOST


def _may_ring(op: FlowOp) -> bool:
    """Return whether an op is attention or its derivative."""
    if isinstance(op, ExternOp):
        return op.target in (ATTENTION, BACKWARD)
    return isinstance(op, AttentionOp)


def _check_known(names: Collection[str], rings: Collection[str]) -> None:
    unknown = sorted(set(names) - set(rings))
    if unknown:
        raise IrcError(
            "option-value",
            f"plan-rings: only: no ring has the id '{unknown[0]}'",
            because=f"rings are {', '.join(sorted(rings))}" if rings else "the plan has no rings",
            help=did_you_mean(unknown[0], rings)
            or "pin q, k, v and result of an attention op to one split of the sequence",
        )
