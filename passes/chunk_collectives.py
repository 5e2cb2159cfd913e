"""Pass ``chunk-collectives``: collectives beside matmuls are cut into pieces that overlap."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.passes import ModulePass

from irc.cluster.load import THIS_HOST, find_cluster
from irc.cluster.topology import Cluster
from irc.constraints.chunks import Degrees, parse_chunks
from irc.constraints.pins import constraint_text
from irc.cost.model import ClusterCost
from irc.dialects.builder import functions
from irc.dialects.flow import id_of
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.search.facts import call_counts
from irc.sharding.chunk_pins import check_cut, check_known, refuse_whole
from irc.sharding.chunks import cut_group, group_of, tell, told
from irc.sharding.mesh import mesh_of, parse_mesh
from irc.sharding.pieces import Pieces
from irc.simulate.block import BlockTimes
from irc.simulate.chunks import Chooser


@dataclass(frozen=True)
class ChunkCollectivesPass(ModulePass):
    """Cut an all-gather and the matmuls that read it, or a matmul and its reduce-scatter.

    A matmul of gathered rows waits for all of them, and a reduce-scatter for all of its operand. In
    ``degree`` pieces, each a collective and a matmul of its own, one piece is sent while another is
    computed (async tensor parallel; Wang et al. 2023, "Overlap Communication with Dependent
    Computation via Decomposition"). Pieces are runs of rows, or of columns of what is scattered;
    those of the dim that is gathered have a run of each rank's rows, so that every rank sends its
    part of each. No sum is cut: values differ by no more than the order in which kernels and
    reduce-scatters of other sizes add.

    Run: chunk-collectives{degree=2}

    Before:
    ```mlir
    builtin.module attributes {irc.mesh = "tensor=2"} {
    func.func @forward(%x: !flow.tensor<[2, 4, 8], f32>, %w: !flow.tensor<[6, 8], f32>)
        -> !flow.tensor<[2, 8, 6], f32> {
      %0 = comm.all_gather(%x) {axis = "tensor", dim = 1 : i64, id = "n0.start", loc = "m.py:1"}
          : (!flow.tensor<[2, 4, 8], f32>) -> !comm.pending<!flow.tensor<[2, 8, 8], f32>>
      %1 = comm.wait(%0) {id = "n0", loc = "m.py:1"}
          : (!comm.pending<!flow.tensor<[2, 8, 8], f32>>) -> !flow.tensor<[2, 8, 8], f32>
      %2 = flow.contract(%1, %w) {spec = "bsk,nk->bsn", id = "n1", loc = "m.py:2"}
          : (!flow.tensor<[2, 8, 8], f32>, !flow.tensor<[6, 8], f32>)
          -> !flow.tensor<[2, 8, 6], f32>
      func.return %2 : !flow.tensor<[2, 8, 6], f32>
    }
    }
    ```

    After:
    ```mlir
    builtin.module attributes {irc.mesh = "tensor=2",
    irc.chunks = [{id = "n0", op = "comm.all_gather", axis = "tensor", degree = 2 : i64,
        dim = 0 : i64, loc = "m.py:1"}]} {
    func.func @forward(%x: !flow.tensor<[2, 4, 8], f32>, %w: !flow.tensor<[6, 8], f32>)
        -> !flow.tensor<[2, 8, 6], f32> {
      %0 = flow.slice(%x) {loc = "m.py:1", id = "n0.start.operand0.part0",
              starts = array<i64: 0, 0, 0>, stops = array<i64: 1, 4, 8>,
              steps = array<i64: 1, 1, 1>}
          : (!flow.tensor<[2, 4, 8], f32>) -> !flow.tensor<[1, 4, 8], f32>
      %1 = flow.slice(%x) {loc = "m.py:1", id = "n0.start.operand0.part1",
              starts = array<i64: 1, 0, 0>, stops = array<i64: 2, 4, 8>,
              steps = array<i64: 1, 1, 1>}
          : (!flow.tensor<[2, 4, 8], f32>) -> !flow.tensor<[1, 4, 8], f32>
      %2 = comm.all_gather(%0) {loc = "m.py:1", id = "n0.piece0.start", chunk = "0 of 2",
              axis = "tensor", dim = 1 : i64}
          : (!flow.tensor<[1, 4, 8], f32>) -> !comm.pending<!flow.tensor<[1, 8, 8], f32>>
      %3 = comm.all_gather(%1) {loc = "m.py:1", id = "n0.piece1.start", chunk = "1 of 2",
              axis = "tensor", dim = 1 : i64}
          : (!flow.tensor<[1, 4, 8], f32>) -> !comm.pending<!flow.tensor<[1, 8, 8], f32>>
      %4 = comm.wait(%2) {loc = "m.py:1", id = "n0.piece0"}
          : (!comm.pending<!flow.tensor<[1, 8, 8], f32>>) -> !flow.tensor<[1, 8, 8], f32>
      %5 = comm.wait(%3) {loc = "m.py:1", id = "n0.piece1"}
          : (!comm.pending<!flow.tensor<[1, 8, 8], f32>>) -> !flow.tensor<[1, 8, 8], f32>
      %6 = flow.contract(%4, %w) {loc = "m.py:2", id = "n1.piece0", spec = "bsk,nk->bsn"}
          : (!flow.tensor<[1, 8, 8], f32>, !flow.tensor<[6, 8], f32>)
          -> !flow.tensor<[1, 8, 6], f32>
      %7 = flow.contract(%5, %w) {loc = "m.py:2", id = "n1.piece1", spec = "bsk,nk->bsn"}
          : (!flow.tensor<[1, 8, 8], f32>, !flow.tensor<[6, 8], f32>)
          -> !flow.tensor<[1, 8, 6], f32>
      %8 = flow.concat(%6, %7) {id = "n1", loc = "m.py:2", dim = 0 : i64}
          : (!flow.tensor<[1, 8, 6], f32>, !flow.tensor<[1, 8, 6], f32>)
          -> !flow.tensor<[2, 8, 6], f32>
      func.return %8 : !flow.tensor<[2, 8, 6], f32>
    }
    }
    ```

    What else reads the gathered rows (a weight's gradient, the backward pass) reads the pieces
    joined, which costs a copy. The degree is the one of 2, 4 and 8 by which the ops around end
    first, in the order that ``order`` will give them, on compute and links that slow each other
    down; where none saves a twentieth of the collective, or sizes do not divide, it stays whole.
    Processes of one host take its cores for their transport: there, nothing is cut by price.
    ``irc.chunks`` of the module says what was cut and what it saves, ``chunk`` of a collective
    which piece it is.

    Attributes:
        cluster: whose links and kernels are to be used.
        within: the mesh of the whole run, where the program is one stage's.
        degree: of every collective beside a matmul that it divides; 0: the best of each, by price.
        only: ids of the collectives that may be cut (``n0.box0``), with ``+`` between; empty: all.
            With a degree, or on a host, one of them that stays whole is an error.
        pins: constraints, as text or the name of a file, of which lines ``chunk NAME = 4`` say the
            degree of collectives beside products of these modules; one that stays whole is an
            error.
        is_part: the program is one of several functions, of which others may have what ``only``
            names.
    """

    name = "chunk-collectives"
    level: ClassVar[str] = "spmd"
    after: ClassVar[str] = "hoist-collectives"

    cluster: str = THIS_HOST
    within: str = ""
    degree: int = 0
    only: str = ""
    is_part: bool = False
    pins: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.degree < 0 or self.degree == 1:
            raise IrcError(
                "option-value",
                f"chunk-collectives{{degree={self.degree}}}: a cut is into 2 pieces or more",
                help="leave it out for the best by price, or name no-chunk-collectives",
            )
        mesh = mesh_of(op)
        cluster = find_cluster(self.cluster)
        only = frozenset(filter(None, self.only.split("+")))
        if not self.is_part:
            check_known(op, only)
        # Processes of one host take its cores for their transport: nothing is hidden.
        by_price = not self.degree and not cluster.device.cores
        chunks = parse_chunks(*constraint_text(self.pins))
        degrees = Degrees(op, chunks, is_part=self.is_part)
        if mesh.axes and (self.degree or by_price or chunks):
            self._cut(op, mesh, cluster, only, degrees, by_price=by_price)
        if not by_price:
            check_cut(op, only, self.degree)

    def _cut(
        self,
        op: ModuleOp,
        mesh: Mesh,
        cluster: Cluster,
        only: Collection[str],
        degrees: Degrees,
        *,
        by_price: bool,
    ) -> None:
        within = parse_mesh(self.within) if self.within else None
        cost = ClusterCost(cluster, mesh, within=within, alone=True)
        times = BlockTimes(cost, functions(op), within)
        chooser, pinned = Chooser(cost, times, self.degree), dict[int, Chooser]()
        said: list[DictionaryAttr] = []
        runs = call_counts(functions(op))
        for name, func in functions(op).items():
            pieces = Pieces()
            for each in list(func.body.block.ops):
                group = group_of(each) if each.parent is not None else None
                if group is None or (only and id_of(group.wait) not in only):
                    continue
                degree = degrees.of(group.start, group.wait)
                own = chooser
                if degree is not None:
                    own = pinned.setdefault(degree, Chooser(cost, times, degree))
                elif not (self.degree or by_price):
                    continue
                choice = None if degree == 1 else own.choice(group, pieces)
                if choice is None and degree is not None and degree > 1:
                    refuse_whole(group.wait, degree)
                if choice is not None:
                    said.append(told(group, *choice, runs[name]))
                    cut_group(group, choice.cut, pieces)
        tell(op, said)
