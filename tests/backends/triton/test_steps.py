"""``irc.compile_step(backend="triton")``, in Triton's interpreter: alone, and on two ranks."""

import json
from pathlib import Path

import pytest
from torch import nn

import irc
from irc.errors import IrcError
from tests.backends.triton.interpreting import run_interpreted

pytest.importorskip("triton")
PROGRAM = Path(__file__).with_name("stepping_program.py")


@pytest.mark.parametrize(
    ("mesh", "micro_batches"),
    [
        ("", 0),
        ("", 4),
        pytest.param("data=2", 0, marks=pytest.mark.slow),
        pytest.param("pipe=2", 4, marks=pytest.mark.slow),
    ],
)
def test_a_step_trains_as_eager(mesh: str, micro_batches: int) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2"] if mesh else []
    printed = run_interpreted([*launcher, str(PROGRAM), mesh, f"{micro_batches}"])
    ranks = [json.loads(line[1:]) for line in printed.splitlines() if line.startswith("@")]
    assert len(ranks) == (2 if mesh else 1)
    assert max(map(max, ranks)) < 1e-6


def test_a_backend_that_cannot_be_is_refused_at_once() -> None:
    with pytest.raises(IrcError, match="trition") as error:
        irc.compile_step(nn.Linear(2, 2), backend="trition")
    assert error.value.code == "backend-unknown"
