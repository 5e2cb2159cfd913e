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


@pytest.mark.parametrize("mesh", ["", pytest.param("data=2", marks=pytest.mark.slow)])
def test_a_step_trains_as_eager(mesh: str) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2"] if mesh else []
    printed = run_interpreted([*launcher, str(PROGRAM), mesh])
    ranks = [json.loads(line[1:]) for line in printed.splitlines() if line.startswith("@")]
    assert len(ranks) == (2 if mesh else 1)
    assert max(map(max, ranks)) < 1e-6


def test_a_backend_that_cannot_be_is_refused_at_once() -> None:
    with pytest.raises(IrcError, match="trition") as error:
        irc.compile_step(nn.Linear(2, 2), backend="trition")
    assert error.value.code == "backend-unknown"
    with pytest.raises(IrcError, match=r"kernels of the backend cpu") as error:
        irc.compile_step(nn.Linear(2, 2), backend="triton", micro_batches=2)
    assert error.value.code == "pipeline-unsupported"
