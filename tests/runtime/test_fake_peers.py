"""Collectives of one rank alone give what real ones do where every rank has the same."""

import torch

from irc.dialects.placement import Mesh
from irc.plan.schema import Start
from irc.runtime.collectives import Operands
from irc.runtime.fake_peers import ANSWERS, FakeCommunicator

MESH = Mesh.parse("data=2,tensor=3")


def run(op: str, source: torch.Tensor, target: torch.Tensor, **more: object) -> torch.Tensor:
    attrs = {"axis": "tensor", **more}
    scratch = {n: attrs.pop(n) for n in ("send", "receive", "marks", "coming") if n in attrs}
    action = Start("start", f"comm.{op}", (0,), (1,), "comm tensor", attrs=attrs)
    FakeCommunicator(MESH, 4).start(action, Operands(source, target, **scratch))()  # type: ignore[arg-type]
    return target


def test_values_are_those_of_equal_ranks() -> None:
    x = torch.arange(12.0).view(6, 2)
    assert torch.equal(run("all_reduce", x, torch.empty(6, 2), fn="sum"), x)
    assert torch.equal(run("all_gather", x, torch.empty(18, 2), dim=0), x.repeat(3, 1))
    # Rank 4 of the mesh is at place 1 of axis tensor.
    assert torch.equal(run("reduce_scatter", x, torch.empty(2, 2), dim=0, fn="sum"), x[2:4])
    assert torch.equal(run("permute", x, torch.empty(6, 2), targets=[1, 2, -1]), x)
    assert not run("permute", x, torch.ones(6, 2), targets=[-1, 0, 2]).any()


def test_what_is_packed_is_unpacked() -> None:
    x = torch.arange(12.0).view(2, 6)
    gathered = run("all_gather", x, torch.empty(2, 18), dim=1, receive=torch.empty(3, 2, 6))
    assert torch.equal(gathered, x.repeat(1, 3))
    part = run("reduce_scatter", x, torch.empty(2, 2), dim=1, fn="sum", send=torch.empty(3, 2, 2))
    assert torch.equal(part, x[:, 2:4])
    moved = run("all_to_all", x, torch.empty(6, 2), split_dim=1, concat_dim=0,
                send=torch.empty(3, 2, 2))  # fmt: skip
    assert torch.equal(moved, torch.cat(x.split(2, 1)))


def test_rows_come_as_many_as_are_expected() -> None:
    x = torch.arange(8.0).view(4, 2)
    marks = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]])
    coming = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]])
    scratch = {"send": torch.empty(12, 2), "receive": torch.empty(12, 2)}
    rows = run("dispatch_rows", x, torch.ones(12, 2), marks=marks, coming=coming, **scratch)
    assert torch.equal(rows.any(1), coming.reshape(-1).bool())
    back = run("combine_rows", rows, torch.empty(4, 2), marks=coming, coming=marks, **scratch)
    assert torch.equal(back.any(1), marks.any(0))


def test_every_collective_of_a_plan_has_an_answer() -> None:
    from irc.runtime.collectives import STARTS

    assert set(ANSWERS) == set(STARTS)
