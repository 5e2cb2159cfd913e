"""Each rank is given its own part of the samples: numbers are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from irc.calls.feeding import feeding_of
from irc.calls.sampler import DataSampler
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from tests.distributed.test_loop import run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


def run(folder: Path, mesh: str, *cases: str) -> list[dict[str, Any]]:
    """Run cases in the processes of a mesh; return what each of them says."""
    world = Mesh.parse(mesh).num_ranks
    return run_ranks(folder, world, "tests.distributed.feeding_program", mesh, *cases)


def check(errors: dict[str, float]) -> None:
    for name, error in errors.items():
        assert error < (2e-6 if name == "losses" else 1e-5), (name, error)


def test_ranks_are_given_parts_of_the_samples(tmp_path: Path) -> None:
    for report in run(tmp_path, "data=2", "local", "named", "loader", "loop", "called", "paced"):
        for errors in report.values():
            check(errors)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=2,tensor=2", "data=4", "data=2,pipe=2"])
def test_parts_of_the_samples_on_four_ranks(tmp_path: Path, mesh: str) -> None:
    loop = () if "pipe" in mesh else ("loop",)
    for report in run(tmp_path, mesh, "local", "named", "loader", "called", *loop):
        for errors in report.values():
            check(errors)


@pytest.mark.slow
def test_a_module_in_stages_is_called_after_steps(tmp_path: Path) -> None:
    for report in run(tmp_path, "pipe=2", "called"):
        check(report["called"])


@pytest.mark.slow
def test_what_a_rank_is_given_has_to_fit(tmp_path: Path) -> None:
    for each in run(tmp_path, "data=2,tensor=2", "refusals"):
        said = each["refusals"]
        assert said["sizes"] == (
            "input-mismatch: rank 1 was given other inputs than rank 0; 'tokens' is [3, 6] int64 "
            "on rank 1, and [4, 6] int64 on rank 0"
        )
        assert said["fed"] == ""
        for when in ("samples", "later"):
            assert said[when].startswith("input-mismatch: ranks 1, 3 were given other inputs"), said
            assert "which shares its samples" in said[when]
        assert said["unknown"].startswith("option-value: batch names an argument 'words'")


def test_which_ranks_share_samples() -> None:
    feeding = feeding_of("local", Mesh.parse("pipe=2,data=2,tensor=2"))
    assert feeding.shares == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert f"{feeding.of_rank(4)}" == (
        "of 2 parts of the samples, this rank is given number 0, as ranks 0, 1, 5 are"
    )
    assert feeding_of("local", Mesh.parse("rows=4,tensor=2")).count == 4
    assert feeding_of("local", Mesh.parse("data=2,fsdp=2,tensor=2")).parts == (
        *(0, 0, 1, 1),
        *(2, 2, 3, 3),
    )
    assert not feeding_of({"x": "global"}, Mesh.parse("data=2")).is_local
    for batch, mesh in (("lokal", "data=2"), ("local", "tensor=2"), ({"x": "whole"}, "data=2")):
        with pytest.raises(IrcError, match="option-value"):
            feeding_of(batch, Mesh.parse(mesh))


def test_a_sampler_goes_on_on_another_mesh() -> None:
    def samplers(mesh: str) -> list[DataSampler]:
        parsed = Mesh.parse(mesh)
        feeding = feeding_of("local", parsed)
        return [DataSampler(feeding.of_rank(r), 50, seed=4) for r in range(parsed.num_ranks)]

    def interleaved(every: list[list[int]]) -> list[int]:
        return [number for numbers in zip(*every, strict=True) for number in numbers]

    first = samplers("data=4")
    for sampler in first:
        sampler.set_epoch(3)
    rounds = [iter(sampler) for sampler in first]
    begun = interleaved([[next(each) for _ in range(5)] for each in rounds])
    states = [sampler.state_dict() for sampler in first]
    assert states == [states[0]] * 4
    others = samplers("data=2,tensor=2")
    for sampler in others:
        sampler.load_state_dict(states[0])
        sampler.set_epoch(3)  # as a script says that goes on
    rest = [list(sampler) for sampler in others]
    assert rest[0] == rest[1]
    assert rest[2] == rest[3]
    every = begun + interleaved([rest[0], rest[2]])
    assert len(every) == len(set(every)) == 50
    # It is over: a script that goes on there comes to the next epoch.
    over = others[0].state_dict()
    other = samplers("data=2")[0]
    other.load_state_dict(over)
    other.set_epoch(3)
    assert not list(other)
    other.set_epoch(4)
    assert len(list(other)) == 25
    assert len(list(other)) == 25
    with pytest.raises(IrcError, match="state-mismatch"):
        other.load_state_dict({**over, "size": 51})
