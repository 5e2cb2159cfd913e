"""comm.permute at every level: text, verifier, virtual ranks, plan, price."""

from __future__ import annotations

import pytest
import torch
from xdsl.utils.exceptions import VerifyException

from irc.cluster.links import AxisLink, Hop
from irc.cost.permute import permute_s
from irc.dialects.placement import Mesh
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.interpret.plan import exchange
from irc.interpret.spmd import run_spmd
from irc.plan.schema import Start
from irc.plan.verify import _permute_problem
from irc.sharding.collectives import check_collectives

TEXT = """
builtin.module attributes {irc.mesh = "seq=3"} {
func.func @forward(%x: !flow.tensor<[2, 4], f32> {role = "input", name = "x",
    sbp = #sbp.placement<[seq = S(0)]>})
    -> (!flow.tensor<[2, 4], f32> {sbp = #sbp.placement<[seq = S(0)]>}) {
  %s = comm.permute(%x) {axis = "seq", targets = array<i64: 1, 2, 0>, loc = "m.py:1",
      id = "n0.start"} : (!flow.tensor<[2, 4], f32>) -> !comm.pending<!flow.tensor<[2, 4], f32>>
  %r = comm.wait(%s) {loc = "m.py:1", id = "n0"}
      : (!comm.pending<!flow.tensor<[2, 4], f32>>) -> !flow.tensor<[2, 4], f32>
  func.return %r : !flow.tensor<[2, 4], f32>
}
}
"""
MESH = Mesh.parse("seq=3")


def test_it_round_trips() -> None:
    text = dump(load(TEXT))
    assert "targets = array<i64: 1, 2, 0>" in text
    assert dump(load(text)) == text


@pytest.mark.parametrize(
    ("table", "rows"),
    [("1, 2, 0", [4, 5, 0, 1, 2, 3]), ("-1, 0, 2", [2, 3, -1, -1, 4, 5])],
)
def test_parts_go_where_the_table_says_and_others_get_zeros(table: str, rows: list[int]) -> None:
    x = torch.arange(1.0, 25.0).reshape(6, 4)
    module = load(TEXT.replace("1, 2, 0", table))
    (output,) = run_spmd(module, [x], MESH)
    expected = torch.stack([x[i] if i >= 0 else torch.zeros(4) for i in rows])
    assert torch.equal(output, expected)
    targets = tuple(int(t) for t in table.split(","))
    start = Start(
        "start", "comm.permute", (0,), (1,), "s", attrs={"axis": "seq", "targets": targets}
    )
    assert torch.equal(torch.cat(exchange(start, x.chunk(3))), expected)


@pytest.mark.parametrize(
    ("table", "said"), [("1, 1, 0", "sends twice to rank 1"), ("1, 3, 0", "sends to rank 3")]
)
def test_a_rank_receives_once_and_exists(table: str, said: str) -> None:
    with pytest.raises((VerifyException, IrcError), match=said):
        load(TEXT.replace("1, 2, 0", table)).verify()
    assert _permute_problem(tuple(int(t) for t in table.split(",")), 3)


def test_a_table_is_for_the_ranks_of_its_axis() -> None:
    """Trap T-41: ranks outside of the table would wait for ever."""
    with pytest.raises(IrcError, match="targets for 2 ranks, and its groups have 3"):
        check_collectives(load(TEXT.replace("1, 2, 0", "1, 0")), MESH)
    assert _permute_problem((1, 0), 3)
    assert _permute_problem([1, True, 0], 3)
    assert not _permute_problem((1, 2, 0), 3)


INSIDE, BETWEEN = Hop(4, 100e9, 1e-6, 0.0), Hop(2, 10e9, 5e-6, 0.0)
NODES = AxisLink(8, 5e-6, 10e9, 0.0, hops=(INSIDE, BETWEEN))
SHIFT = [(rank + 1) % 8 for rank in range(8)]
FAR = [(rank + 4) % 8 for rank in range(8)]


def test_the_price_follows_the_wires_that_messages_take() -> None:
    """Trap T-19: a shift leaves each node once, with all its ports; a swap of nodes with each."""
    n = 40_000_000
    inside = permute_s([1, 2, 3, 0, 5, 6, 7, 4], NODES, n, 1e12)
    assert inside == pytest.approx(1e-6 + n / 400e9 * 4)
    assert permute_s(SHIFT, NODES, n, 1e12) == pytest.approx(5e-6 + n / 40e9)
    assert permute_s(FAR, NODES, n, 1e12) == pytest.approx(5e-6 + n / 10e9)


def test_the_price_rises_with_the_size() -> None:
    """Trap T-18."""
    seconds = [permute_s(SHIFT, NODES, 2.0**k, 1e12) for k in range(30)]
    assert seconds == sorted(seconds)
    assert permute_s([-1] * 8, NODES, 1e6, 1e12) == 0.0
    assert permute_s(list(range(8)), NODES, 1e6, 1e12) == pytest.approx(2e-6)
