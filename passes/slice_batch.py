"""Pass ``slice-batch``: slices of a batch in turns, one computed while another is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from irc.cluster.load import THIS_HOST, find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.builder import entry, functions
from irc.dialects.comm import CollectiveOp
from irc.dialects.flow import id_of
from irc.errors import IrcError
from irc.passes.chunk_collectives import ChunkCollectivesPass
from irc.sharding.batch_slices import slice_batch, tell_slices
from irc.sharding.inlining import Inlining
from irc.sharding.mesh import mesh_of, parse_mesh
from irc.sharding.slicing import Sliced
from irc.simulate.block import BlockTimes

LEAST = 0.02
"""Slices are worth it where they save this part of a step: nothing is known more exactly."""
MOST_OPS = 20_000
"""Of longer programs the price is not asked: each op is priced, those of equal layers as well."""


@dataclass(frozen=True)
class SliceBatchPass(ModulePass):
    """Cut the batch of a call into slices that are computed in turns (nano-batches).

    In tensor parallelism, what is behind an all-reduce waits for it. Two halves of a batch do not
    wait for each other: while the collective of one is under way, the other is computed (NanoFlow,
    arXiv:2408.12757; Domino, arXiv:2409.15241). Every op that a batch goes through becomes one
    of each half, by the rule by which ranks would share it; what sums over the batch, as gradients
    of weights, adds the halves up, or joins them where that moves less. No value changes but by the
    order in which a sum adds.

    Run: slice-batch{ways=2}

    Before:
    ```mlir
    builtin.module attributes {irc.mesh = "tensor=2"} {
    func.func @forward(%x: !flow.tensor<[4, 8], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[6, 8], f32> {role = "parameter", name = "w"})
        -> !flow.tensor<[4, 6], f32> {
      %0 = flow.contract(%x, %w) {spec = "bk,nk->bn", id = "n0", loc = "m.py:1"}
          : (!flow.tensor<[4, 8], f32>, !flow.tensor<[6, 8], f32>) -> !flow.tensor<[4, 6], f32>
      %1 = comm.all_reduce(%0) {axis = "tensor", fn = "sum", id = "n1.start", loc = "m.py:1"}
          : (!flow.tensor<[4, 6], f32>) -> !comm.pending<!flow.tensor<[4, 6], f32>>
      %2 = comm.wait(%1) {id = "n1", loc = "m.py:1"}
          : (!comm.pending<!flow.tensor<[4, 6], f32>>) -> !flow.tensor<[4, 6], f32>
      func.return %2 : !flow.tensor<[4, 6], f32>
    }
    }
    ```

    After:
    ```mlir
    builtin.module attributes {irc.mesh = "tensor=2",
    irc.slices = {ways = 2 : i64, rows = 4 : i64, input = "x", collectives = 1 : i64}} {
    func.func @forward(%x: !flow.tensor<[4, 8], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[6, 8], f32> {role = "parameter", name = "w"})
        -> !flow.tensor<[4, 6], f32> {
      %0 = flow.slice(%x) {loc = "m.py:1", id = "n0.operand0.slice0", starts = array<i64: 0, 0>,
          stops = array<i64: 2, 8>, steps = array<i64: 1, 1>}
          : (!flow.tensor<[4, 8], f32>) -> !flow.tensor<[2, 8], f32>
      %1 = flow.contract(%0, %w) {spec = "bk,nk->bn", id = "n0.slice0", loc = "m.py:1"}
          : (!flow.tensor<[2, 8], f32>, !flow.tensor<[6, 8], f32>) -> !flow.tensor<[2, 6], f32>
      %2 = comm.all_reduce(%1) {axis = "tensor", fn = "sum", id = "n1.slice0.start",
          chunk = "0 of 2", loc = "m.py:1"}
          : (!flow.tensor<[2, 6], f32>) -> !comm.pending<!flow.tensor<[2, 6], f32>>
      %3 = flow.slice(%x) {loc = "m.py:1", id = "n0.operand0.slice1", starts = array<i64: 2, 0>,
          stops = array<i64: 4, 8>, steps = array<i64: 1, 1>}
          : (!flow.tensor<[4, 8], f32>) -> !flow.tensor<[2, 8], f32>
      %4 = flow.contract(%3, %w) {spec = "bk,nk->bn", id = "n0.slice1", loc = "m.py:1"}
          : (!flow.tensor<[2, 8], f32>, !flow.tensor<[6, 8], f32>) -> !flow.tensor<[2, 6], f32>
      %5 = comm.all_reduce(%4) {axis = "tensor", fn = "sum", id = "n1.slice1.start",
          chunk = "1 of 2", loc = "m.py:1"}
          : (!flow.tensor<[2, 6], f32>) -> !comm.pending<!flow.tensor<[2, 6], f32>>
      %6 = comm.wait(%2) {id = "n1.slice0", loc = "m.py:1"}
          : (!comm.pending<!flow.tensor<[2, 6], f32>>) -> !flow.tensor<[2, 6], f32>
      %7 = comm.wait(%5) {id = "n1.slice1", loc = "m.py:1"}
          : (!comm.pending<!flow.tensor<[2, 6], f32>>) -> !flow.tensor<[2, 6], f32>
      %8 = flow.concat(%6, %7) {id = "n1", loc = "m.py:1", dim = 0 : i64}
          : (!flow.tensor<[2, 6], f32>, !flow.tensor<[2, 6], f32>) -> !flow.tensor<[4, 6], f32>
      func.return %8 : !flow.tensor<[4, 6], f32>
    }
    }
    ```

    Where ranks exchange samples, a slice has some of each rank's. Blocks that a batch goes through
    are put in the place of their calls, since no collective is under way over the border of a
    block. The halves are taken where the program, with the collectives that ``chunk-collectives``
    would cut of it, ends sooner on compute and links that slow each other down, by a fiftieth or
    more: weights are read twice, kernels are narrower, and collectives begin twice. Processes of
    one host take its cores for their transport: there, nothing is sliced by price. ``irc.slices``
    of the module says what was done.

    A batch that does not divide stays whole, and so does a program with an op that computes across
    samples (a batch norm, a sort along the batch): its halves would wait for each other. With
    ``ways`` that is an error.

    Attributes:
        cluster: whose links and kernels are to be used.
        within: the mesh of the whole run, where the program is one stage's.
        ways: how many slices; 0: two halves, or none, by price.
        is_part: the program is one of several functions, whose batch is a micro-batch: it stays
            whole.
    """

    name = "slice-batch"
    level: ClassVar[str] = "spmd"
    after: ClassVar[str] = "hoist-collectives"

    cluster: str = THIS_HOST
    within: str = ""
    ways: int = 0
    is_part: bool = False

    def check(self) -> None:
        """Refuse a number of slices that no program has.

        Raises:
            IrcError: ``option-value``.
        """
        if self.ways < 0 or self.ways == 1:
            raise _refused(self.ways, "2 slices or more", "leave it out for what is best by price")
        if self.ways and self.is_part:
            raise _refused(
                self.ways,
                "a step in micro-batches is not sliced further",
                "choose more micro-batches, or leave the pass out",
            )

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self.check()
        if self.is_part:
            return
        if self.ways:
            said = slice_batch(op, self.ways)
            _check(said, self.ways)
            tell_slices(op, self.ways, said, None)
        elif mesh_of(op).axes and not find_cluster(self.cluster).device.cores:
            self._slice_by_price(ctx, op)

    def _slice_by_price(self, ctx: Context, op: ModuleOp) -> None:
        times = self._times(op)
        if _num_ops(op) > MOST_OPS or _sent_part(op, times) < LEAST:
            return
        sliced, whole = op.clone(), op.clone()
        said = slice_batch(sliced, 2)
        if not said.collectives or said.obstacles:
            return
        _inline(whole, said.inlined)
        # Slices compute no less: what is saved at most is what compute does not hide of the whole.
        compute_s = times.compute_s(entry(whole).body.block)
        if _is_little(self._times(whole).end(entry(whole).body.block), compute_s):
            return
        before = self._end(ctx, whole)
        if _is_little(before, compute_s):
            return
        after = self._end(ctx, sliced)
        if before - after > LEAST * before:
            tell_slices(op, 2, slice_batch(op, 2), before - after)

    def _end(self, ctx: Context, module: ModuleOp) -> float:
        """Return the seconds after which a program ends; its collectives are cut by price."""
        ChunkCollectivesPass(cluster=self.cluster, within=self.within).apply(ctx, module)
        return self._times(module).end(entry(module).body.block)

    def _times(self, module: ModuleOp) -> BlockTimes:
        within = parse_mesh(self.within) if self.within else None
        cost = ClusterCost(find_cluster(self.cluster), mesh_of(module), within=within, alone=True)
        return BlockTimes(cost, functions(module), within)


def _is_little(seconds: float, compute_s: float) -> bool:
    """Return whether a program that ends after some seconds hides all but little."""
    return seconds - compute_s <= LEAST * seconds


def _check(said: Sliced, ways: int) -> None:
    """Refuse what was asked for and cannot be.

    Raises:
        IrcError: ``option-value`` saying which size or op forbids it.
    """
    leave_out = "leave the pass out"
    if not said.rows:
        raise _refused(ways, "no input has a batch", leave_out)
    if said.rows % ways:
        raise _refused(
            ways,
            f"'{said.input}' has {said.rows} samples on a rank, which are not {ways} equal slices",
            f"choose a batch that {ways} divides on each rank, or {leave_out}",
        )
    if said.obstacles:
        raise IrcError(
            "option-value",
            f"slice-batch{{ways={ways}}}: slices of the batch would wait for each other",
            where=said.obstacles[0].loc,
            because=[f"{each.name} '{each.id}' ({each.loc}): {each.because}"
                     for each in said.obstacles[:5]],
            help=leave_out,
        )  # fmt: skip
    if not said.collectives:
        raise _refused(ways, "no collective moves what is computed of a batch", leave_out)


def _refused(ways: int, because: str, advice: str) -> IrcError:
    message = f"slice-batch{{ways={ways}}}: {because}"
    return IrcError("option-value", message, help=advice)


def _sent_part(module: ModuleOp, times: BlockTimes) -> float:
    """Return which part of the seconds of all ops collectives take: no more is hidden."""

    def sent(op: Operation) -> float:
        return times.seconds(op) if isinstance(op, CollectiveOp) else 0.0

    all_s = _total(module, times.seconds)
    return _total(module, sent) / all_s if all_s else 0.0


def _num_ops(module: ModuleOp) -> float:
    """Return how many ops a program runs, those of blocks at each call."""
    return _total(module, lambda op: 1.0)


def _total(module: ModuleOp, of: Callable[[Operation], float]) -> float:
    """Return a sum over the ops that a program runs, those of blocks at each call."""
    known = functions(module)
    totals: dict[str, float] = {}

    def total(op: Operation) -> float:
        if not isinstance(op, CallOp):
            return of(op)
        name = op.callee.string_value()
        if name not in totals:
            totals[name] = sum(map(total, known[name].body.block.ops))
        return totals[name]

    return sum(map(total, entry(module).body.block.ops))


def _inline(module: ModuleOp, ids: list[str]) -> None:
    """Put the ops of blocks in the place of some calls of the entry."""
    inlining, names = Inlining(functions(module)), frozenset(ids)
    for op in list(entry(module).body.block.ops):
        if isinstance(op, CallOp) and id_of(op) in names:
            inlining.replace(op)
