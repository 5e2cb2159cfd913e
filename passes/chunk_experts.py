"""Pass ``chunk-experts``: layers of experts are cut into pieces of tokens that overlap."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.passes import ModulePass

from irc.cluster.load import THIS_HOST, find_cluster
from irc.cluster.topology import Cluster
from irc.cost.model import ClusterCost
from irc.dialects.builder import functions
from irc.dialects.flow import id_of
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.search.facts import call_counts
from irc.sharding.chunks import tell
from irc.sharding.expert_chunks import cut_experts, told
from irc.sharding.expert_layers import expert_layer
from irc.sharding.expert_pins import check_cut_layers, check_known_layers
from irc.sharding.mesh import mesh_of, parse_mesh
from irc.simulate.block import BlockTimes
from irc.simulate.expert_degrees import ExpertChooser


@dataclass(frozen=True)
class ChunkExpertsPass(ModulePass):
    r"""Cut a layer of experts whose tokens travel into ``degree`` pieces of its tokens.

    Experts wait for all tokens, and what they give travels back when all is computed. In pieces,
    each with a dispatch, a computation and a combination of its own, the rows of one travel while
    another is computed (Tutel, arXiv:2206.03382, calls it the degree of overlap; FSMoE,
    arXiv:2501.10714, the pipeline degree). Where ranks of a second axis share the experts' inner
    dim, what gathers the rows over it just before and what sums them just behind is cut as well:
    links between nodes and inside them carry at the same time.

    Each layer has a degree of its own, and its gradients have another. A token's numbers do not
    change but by the order in which products of other sizes add; gradients of matrices are the sum
    of the pieces', in float32 at least.

    Run: chunk-experts{degree=2}

    Before:
    ```mlir
    builtin.module attributes {irc.mesh = "expert=2"} {
    func.func @forward(%x: !flow.tensor<[4, 3], f32>, %going: !flow.tensor<[2, 4], i1>, %coming:
        !flow.tensor<[2, 4], i1>, %index: !flow.tensor<[8, 1], i64>, %weights: !flow.tensor<[8,
        1], f32>, %up: !flow.tensor<[1, 1, 5, 3], f32>, %down: !flow.tensor<[1, 3, 5], f32>) ->
        !flow.tensor<[4, 3], f32> {
      %0 = comm.dispatch_rows(%x, %going, %coming) {loc = "m.py:1", id = "n0", axis =
          "expert", fill = 0.5 : f64} : (!flow.tensor<[4, 3], f32>, !flow.tensor<[2, 4], i1>,
          !flow.tensor<[2, 4], i1>) -> !comm.pending<!flow.tensor<[2, 4, 3], f32>>
      %1 = comm.wait(%0) {loc = "m.py:1", id = "n1"} : (!comm.pending<!flow.tensor<[2, 4, 3],
          f32>>) -> !flow.tensor<[2, 4, 3], f32>
      %2 = flow.reshape(%1) {loc = "m.py:1", id = "n2"} : (!flow.tensor<[2, 4, 3], f32>) ->
          !flow.tensor<[8, 3], f32>
      %3 = flow.extern(%2, %index, %weights, %up, %down) {loc = "m.py:1", id = "n3", target =
          "irc::experts", arguments =
          "[[{\22operand\22:0},{\22operand\22:1},{\22operand\22:2},{\22operand\22:3},{\22operand\22:4},\22silu\22,2],{}]"}
          : (!flow.tensor<[8, 3], f32>, !flow.tensor<[8, 1], i64>, !flow.tensor<[8, 1], f32>,
          !flow.tensor<[1, 1, 5, 3], f32>, !flow.tensor<[1, 3, 5], f32>) -> !flow.tensor<[8, 3],
          f32>
      %4 = flow.reshape(%3) {loc = "m.py:1", id = "n4"} : (!flow.tensor<[8, 3], f32>) ->
          !flow.tensor<[2, 4, 3], f32>
      %5 = comm.combine_rows(%4, %coming, %going) {loc = "m.py:1", id = "n5", axis = "expert",
          fill = 0.5 : f64} : (!flow.tensor<[2, 4, 3], f32>, !flow.tensor<[2, 4], i1>,
          !flow.tensor<[2, 4], i1>) -> !comm.pending<!flow.tensor<[4, 3], f32>>
      %6 = comm.wait(%5) {loc = "m.py:1", id = "n6"} : (!comm.pending<!flow.tensor<[4, 3],
          f32>>) -> !flow.tensor<[4, 3], f32>
      func.return %6 : !flow.tensor<[4, 3], f32>
    }
    }
    ```

    After:
    ```mlir
    builtin.module attributes {irc.mesh = "expert=2",
    irc.chunks = [{id = "n3", op = "experts", axis = "expert", degree = 2 : i64, dim = 0 : i64, loc = "m.py:1"}]} {
    func.func @forward(%x: !flow.tensor<[4, 3], f32>, %going: !flow.tensor<[2, 4], i1>, %coming:
        !flow.tensor<[2, 4], i1>, %index: !flow.tensor<[8, 1], i64>, %weights: !flow.tensor<[8,
        1], f32>, %up: !flow.tensor<[1, 1, 5, 3], f32>, %down: !flow.tensor<[1, 3, 5], f32>) ->
        !flow.tensor<[4, 3], f32> {
      %0 = flow.slice(%x) {loc = "m.py:1", id = "n3.0.part0", starts = array<i64: 0, 0>, stops
          = array<i64: 2, 3>, steps = array<i64: 1, 1>} : (!flow.tensor<[4, 3], f32>) ->
          !flow.tensor<[2, 3], f32>
      %1 = flow.slice(%going) {loc = "m.py:1", id = "n3.1.part0", starts = array<i64: 0, 0>,
          stops = array<i64: 2, 2>, steps = array<i64: 1, 1>} : (!flow.tensor<[2, 4], i1>) ->
          !flow.tensor<[2, 2], i1>
      %2 = flow.slice(%coming) {loc = "m.py:1", id = "n3.2.part0", starts = array<i64: 0, 0>,
          stops = array<i64: 2, 2>, steps = array<i64: 1, 1>} : (!flow.tensor<[2, 4], i1>) ->
          !flow.tensor<[2, 2], i1>
      %3 = comm.dispatch_rows(%0, %1, %2) {loc = "m.py:1", id = "n1.piece0.start", chunk =
          "0 of 2", axis = "expert", fill = 0.5 : f64} : (!flow.tensor<[2, 3], f32>,
          !flow.tensor<[2, 2], i1>, !flow.tensor<[2, 2], i1>) -> !comm.pending<!flow.tensor<[2, 2,
          3], f32>>
      %4 = flow.slice(%x) {loc = "m.py:1", id = "n3.3.part1", starts = array<i64: 2, 0>, stops
          = array<i64: 4, 3>, steps = array<i64: 1, 1>} : (!flow.tensor<[4, 3], f32>) ->
          !flow.tensor<[2, 3], f32>
      %5 = flow.slice(%going) {loc = "m.py:1", id = "n3.4.part1", starts = array<i64: 0, 2>,
          stops = array<i64: 2, 4>, steps = array<i64: 1, 1>} : (!flow.tensor<[2, 4], i1>) ->
          !flow.tensor<[2, 2], i1>
      %6 = flow.slice(%coming) {loc = "m.py:1", id = "n3.5.part1", starts = array<i64: 0, 2>,
          stops = array<i64: 2, 4>, steps = array<i64: 1, 1>} : (!flow.tensor<[2, 4], i1>) ->
          !flow.tensor<[2, 2], i1>
      %7 = comm.dispatch_rows(%4, %5, %6) {loc = "m.py:1", id = "n1.piece1.start", chunk =
          "1 of 2", axis = "expert", fill = 0.5 : f64} : (!flow.tensor<[2, 3], f32>,
          !flow.tensor<[2, 2], i1>, !flow.tensor<[2, 2], i1>) -> !comm.pending<!flow.tensor<[2, 2,
          3], f32>>
      %8 = comm.wait(%3) {loc = "m.py:1", id = "n1.piece0"} : (!comm.pending<!flow.tensor<[2,
          2, 3], f32>>) -> !flow.tensor<[2, 2, 3], f32>
      %9 = flow.reshape(%8) {loc = "m.py:1", id = "n3.piece0.operand0"} : (!flow.tensor<[2, 2,
          3], f32>) -> !flow.tensor<[4, 3], f32>
      %10 = flow.reshape(%index) {loc = "m.py:1", id = "n3.6.part0.apart"} : (!flow.tensor<[8,
          1], i64>) -> !flow.tensor<[2, 4, 1], i64>
      %11 = flow.slice(%10) {loc = "m.py:1", id = "n3.6.part0", starts = array<i64: 0, 0, 0>,
          stops = array<i64: 2, 2, 1>, steps = array<i64: 1, 1, 1>} : (!flow.tensor<[2, 4, 1],
          i64>) -> !flow.tensor<[2, 2, 1], i64>
      %12 = flow.reshape(%11) {loc = "m.py:1", id = "n3.6.part0.view"} : (!flow.tensor<[2, 2,
          1], i64>) -> !flow.tensor<[4, 1], i64>
      %13 = flow.reshape(%weights) {loc = "m.py:1", id = "n3.7.part0.apart"} :
          (!flow.tensor<[8, 1], f32>) -> !flow.tensor<[2, 4, 1], f32>
      %14 = flow.slice(%13) {loc = "m.py:1", id = "n3.7.part0", starts = array<i64: 0, 0, 0>,
          stops = array<i64: 2, 2, 1>, steps = array<i64: 1, 1, 1>} : (!flow.tensor<[2, 4, 1],
          f32>) -> !flow.tensor<[2, 2, 1], f32>
      %15 = flow.reshape(%14) {loc = "m.py:1", id = "n3.7.part0.view"} : (!flow.tensor<[2, 2,
          1], f32>) -> !flow.tensor<[4, 1], f32>
      %16 = flow.extern(%9, %12, %15, %up, %down) {loc = "m.py:1", id = "n3.piece0", chunk =
          "0 of 2", target = "irc::experts", arguments =
          "[[{\22operand\22:0},{\22operand\22:1},{\22operand\22:2},{\22operand\22:3},{\22operand\22:4},\22silu\22,2],{}]"}
          : (!flow.tensor<[4, 3], f32>, !flow.tensor<[4, 1], i64>, !flow.tensor<[4, 1], f32>,
          !flow.tensor<[1, 1, 5, 3], f32>, !flow.tensor<[1, 3, 5], f32>) -> !flow.tensor<[4, 3],
          f32>
      %17 = comm.wait(%7) {loc = "m.py:1", id = "n1.piece1"} : (!comm.pending<!flow.tensor<[2,
          2, 3], f32>>) -> !flow.tensor<[2, 2, 3], f32>
      %18 = flow.reshape(%17) {loc = "m.py:1", id = "n3.piece1.operand0"} : (!flow.tensor<[2,
          2, 3], f32>) -> !flow.tensor<[4, 3], f32>
      %19 = flow.reshape(%index) {loc = "m.py:1", id = "n3.8.part1.apart"} : (!flow.tensor<[8,
          1], i64>) -> !flow.tensor<[2, 4, 1], i64>
      %20 = flow.slice(%19) {loc = "m.py:1", id = "n3.8.part1", starts = array<i64: 0, 2, 0>,
          stops = array<i64: 2, 4, 1>, steps = array<i64: 1, 1, 1>} : (!flow.tensor<[2, 4, 1],
          i64>) -> !flow.tensor<[2, 2, 1], i64>
      %21 = flow.reshape(%20) {loc = "m.py:1", id = "n3.8.part1.view"} : (!flow.tensor<[2, 2,
          1], i64>) -> !flow.tensor<[4, 1], i64>
      %22 = flow.reshape(%weights) {loc = "m.py:1", id = "n3.9.part1.apart"} :
          (!flow.tensor<[8, 1], f32>) -> !flow.tensor<[2, 4, 1], f32>
      %23 = flow.slice(%22) {loc = "m.py:1", id = "n3.9.part1", starts = array<i64: 0, 2, 0>,
          stops = array<i64: 2, 4, 1>, steps = array<i64: 1, 1, 1>} : (!flow.tensor<[2, 4, 1],
          f32>) -> !flow.tensor<[2, 2, 1], f32>
      %24 = flow.reshape(%23) {loc = "m.py:1", id = "n3.9.part1.view"} : (!flow.tensor<[2, 2,
          1], f32>) -> !flow.tensor<[4, 1], f32>
      %25 = flow.extern(%18, %21, %24, %up, %down) {loc = "m.py:1", id = "n3.piece1", chunk =
          "1 of 2", target = "irc::experts", arguments =
          "[[{\22operand\22:0},{\22operand\22:1},{\22operand\22:2},{\22operand\22:3},{\22operand\22:4},\22silu\22,2],{}]"}
          : (!flow.tensor<[4, 3], f32>, !flow.tensor<[4, 1], i64>, !flow.tensor<[4, 1], f32>,
          !flow.tensor<[1, 1, 5, 3], f32>, !flow.tensor<[1, 3, 5], f32>) -> !flow.tensor<[4, 3],
          f32>
      %26 = flow.reshape(%16) {loc = "m.py:1", id = "n3.piece0.sums"} : (!flow.tensor<[4, 3],
          f32>) -> !flow.tensor<[2, 2, 3], f32>
      %27 = comm.combine_rows(%26, %2, %1) {loc = "m.py:1", id = "n6.piece0.start", chunk =
          "0 of 2", axis = "expert", fill = 0.5 : f64} : (!flow.tensor<[2, 2, 3], f32>,
          !flow.tensor<[2, 2], i1>, !flow.tensor<[2, 2], i1>) -> !comm.pending<!flow.tensor<[2,
          3], f32>>
      %28 = flow.reshape(%25) {loc = "m.py:1", id = "n3.piece1.sums"} : (!flow.tensor<[4, 3],
          f32>) -> !flow.tensor<[2, 2, 3], f32>
      %29 = comm.combine_rows(%28, %6, %5) {loc = "m.py:1", id = "n6.piece1.start", chunk =
          "1 of 2", axis = "expert", fill = 0.5 : f64} : (!flow.tensor<[2, 2, 3], f32>,
          !flow.tensor<[2, 2], i1>, !flow.tensor<[2, 2], i1>) -> !comm.pending<!flow.tensor<[2,
          3], f32>>
      %30 = comm.wait(%27) {loc = "m.py:1", id = "n6.piece0"} :
          (!comm.pending<!flow.tensor<[2, 3], f32>>) -> !flow.tensor<[2, 3], f32>
      %31 = comm.wait(%29) {loc = "m.py:1", id = "n6.piece1"} :
          (!comm.pending<!flow.tensor<[2, 3], f32>>) -> !flow.tensor<[2, 3], f32>
      %32 = flow.concat(%30, %31) {loc = "m.py:1", id = "n6", dim = 0 : i64} :
          (!flow.tensor<[2, 3], f32>, !flow.tensor<[2, 3], f32>) -> !flow.tensor<[4, 3], f32>
      func.return %32 : !flow.tensor<[4, 3], f32>
    }
    }
    ```

    The degree is the one of 2, 3, 4, 6, 8, 12 and 16 that divides the tokens of a rank and by which
    the ops around end first, in the order that ``order`` will give them, on compute and links that
    slow each other down: each piece reads the experts' matrices again, pays latencies and launches,
    and what comes back is copied together. Where none saves a thousandth of what the exchanges take,
    the layer stays whole. Processes of one host take its cores for their transport: there, nothing
    is cut by price. ``irc.chunks`` of the module says what was cut and what it saves.

    Attributes:
        cluster: whose links and kernels are to be used.
        within: the mesh of the whole run, where the program is one stage's.
        degree: of every layer whose tokens it divides; 0: the best of each, by price.
        only: ids of the layers that may be cut, with ``+`` between, those of gradients among them
            (``irc explain plan PLAN --overlap`` lists what was cut); empty: all. With a degree, or
            on a host, one of them that stays whole is an error.
        is_part: the program is one of several functions, of which others may have what ``only``
            names.
    """  # noqa: E501 (a string in MLIR has one line)

    name = "chunk-experts"
    level: ClassVar[str] = "spmd"
    after: ClassVar[str] = "lower-boxing"

    cluster: str = THIS_HOST
    within: str = ""
    degree: int = 0
    only: str = ""
    is_part: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.degree < 0 or self.degree == 1:
            raise IrcError(
                "option-value",
                f"chunk-experts{{degree={self.degree}}}: a cut is into 2 pieces or more",
                help="leave it out for the best by price, or name no-chunk-experts",
            )
        mesh = mesh_of(op)
        cluster = find_cluster(self.cluster)
        only = frozenset(filter(None, self.only.split("+")))
        if not self.is_part:
            check_known_layers(op, only)
        # Processes of one host take its cores for their transport: nothing is hidden.
        by_price = not self.degree and not cluster.device.cores
        if mesh.axes and (self.degree or by_price):
            self._cut(op, mesh, cluster, only)
        if not by_price:
            check_cut_layers(op, only, self.degree)

    def _cut(self, op: ModuleOp, mesh: Mesh, cluster: Cluster, only: Collection[str]) -> None:
        known = functions(op)
        layers = [
            (name, layer)
            for name, func in known.items()
            for each in func.walk()
            if (layer := expert_layer(each)) is not None and (not only or id_of(layer.op) in only)
        ]
        if not layers:
            return
        runs = call_counts(known)
        within = parse_mesh(self.within) if self.within else None
        cost = ClusterCost(cluster, mesh, within=within, alone=True)
        chooser = ExpertChooser(cost, BlockTimes(cost, known, within), self.degree)
        said: list[DictionaryAttr] = []
        for name, layer in layers:
            choice = chooser.choice(layer)
            if choice is not None:
                said.append(told(layer, choice.degree, choice.saved_s, runs[name]))
                cut_experts(layer, choice.degree)
        tell(op, said)
