"""Links as slow as a cluster's: when messages begin, and what of it a user sees."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import irc
from irc.calls.rehearse import rehearse_plan
from irc.errors import IrcError
from irc.plan.load import load_plan
from irc.plan.schema import Start
from irc.runtime.due_times import KEPT, Boards
from irc.runtime.launch import run_plan
from irc.runtime.links import Link, check_links


class Clock:
    """A clock that goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def test_messages_follow_each_other_on_a_link() -> None:
    clock = Clock()
    link = Link(clock.now, clock.sleep)
    due = [link.take(2.0, 0.0), link.take(3.0, 1.0), link.take(1.0, 1.0)]
    # The link is free again while a message has its latency.
    assert due == [2.0, 6.0, 7.0]
    clock.sleep(10.0)
    assert link.take(1.0, 0.0) == 11.0


def test_who_waits_for_a_message_waits_until_its_last_part_is_due(tmp_path: Path) -> None:
    clock = Clock()
    link = Link(clock.now, clock.sleep)
    early, late = (Boards(tmp_path).between((0, 1), "data", 2) for _ in range(2))
    numbers = early.next(), late.next()
    early.tell(numbers[0], 0, 1.0)

    def finish() -> None:  # the other rank was late
        clock.sleep(2.0)
        late.tell(numbers[1], 1, 5.0)

    delivery = link.delivery(finish, lambda: early.latest(numbers[0]))
    delivery()
    assert clock.seconds == 5.0
    delivery()  # once more, as who traces does
    assert clock.seconds == 5.0


def test_times_of_many_messages_do_not_mix(tmp_path: Path) -> None:
    one, other = (Boards(tmp_path).between((0, 1), "a name/with..all", 1) for _ in range(2))
    for number in range(KEPT + 100):
        assert one.next() == other.next() == number
        one.tell(number, 0, float(number))
        assert other.latest(number) == number
    assert Boards(tmp_path).between((1, 0), "a name/with..all", 1).latest(0) == 0.0


def test_an_error_is_raised_where_a_message_is_waited_for() -> None:
    def finish() -> None:
        raise RuntimeError("peer closed")

    delivery = Link().delivery(finish, lambda: 0.0)
    with pytest.raises(RuntimeError, match="peer closed"):
        delivery()
    with pytest.raises(RuntimeError, match="peer closed"):
        delivery.get_future().result()


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def exported(folder: Path, **options: str) -> Path:
    irc.export_plan(net(), (torch.randn(8, 16),), out=folder, **options)
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "for one rank"), ({"mesh": "data=2"}, "for this host, whose links are its own")],
)
def test_a_plan_without_links_is_refused(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    plan = exported(tmp_path / "plan", **options)
    with pytest.raises(IrcError, match=message) as error:
        run_plan(plan, links=True)
    assert error.value.code == "option-value"


def test_a_cluster_has_links(tmp_path: Path) -> None:
    check_links(load_plan(exported(tmp_path / "plan", mesh="data=2", cluster="2xL4")))


CLUSTER = """
name = "lab"

[device]
name = "core"
peak_tflops = { f32 = 0.05 }
memory_gb = 8
memory_gb_per_s = 8

[[link]]
devices = 2
gb_per_s = 0.01
latency_us = 50000
launch_us = 10
"""


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=2", "pipe=2"])
def test_a_run_takes_as_long_as_its_links(tmp_path: Path, mesh: str) -> None:
    cluster = tmp_path / "lab.toml"
    cluster.write_text(CLUSTER)
    x, y = torch.randn(8, 16), torch.randn(8, 4)

    def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (out - target).square().mean()

    plan = tmp_path / "plan"
    irc.export_plan(net(), (x, y), loss=loss, optimizer="sgd", mesh=mesh, micro_batches=2,
                    cluster=f"{cluster}", layout="ddp", out=plan)  # fmt: skip
    quick, slow = run_plan(plan), run_plan(plan, links=True)
    assert quick.ok and slow.ok and slow.links
    assert quick.predicted_s is not None
    # A message takes 50 ms and more; what compute takes here is a millisecond.
    assert max(slow.seconds) > 0.9 * quick.predicted_s > 0.05
    assert max(slow.seconds) < 1.5 * quick.predicted_s + max(quick.seconds)


def test_a_rehearsal_takes_a_collective_over_its_link_once(tmp_path: Path) -> None:
    cluster, plan = tmp_path / "lab.toml", tmp_path / "plan"
    cluster.write_text(CLUSTER)
    irc.export_plan(net(), (torch.randn(8, 16),), mesh="data=2", cluster=f"{cluster}", out=plan,
                    layout="fsdp")  # fmt: skip
    starts = [a for a in load_plan(plan).plan.actions if isinstance(a, Start)]
    carried = sum(start.seconds or 0.0 for start in starts)
    assert carried > 0.05
    exposed = rehearse_plan(plan, 0, links=True).exposed_s
    assert 0.5 * carried < exposed < 1.3 * carried
