"""Configurations that torchtitan's and Megatron-LM's settings state."""

from __future__ import annotations

from pathlib import Path

import pytest

from irc.errors import IrcError
from irc.search.stated import read_stated

TITAN = """
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2
[activation_checkpoint]
mode = "full"
"""
MEGATRON = """
pretrain_gpt.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size=2 \\
  --sequence-parallel --micro-batch-size 1 --global-batch-size 128  # a run
  --num-layers 32 --num-layers-per-virtual-pipeline-stage 4 --recompute-activations
"""


def stated(tmp_path: Path, text: str, name: str, devices: int, samples: int) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(read_stated(str(path)).on(devices, samples))


def test_torchtitan(tmp_path: Path) -> None:
    said = stated(tmp_path, TITAN, "run.toml", 64, 64)
    parts = "16 micro-batches, interleaved:2, recompute full, fsdp+tp+sp"
    assert said == f"pipe=4,data=2,tensor=8, {parts}"
    flat = TITAN.replace("parallel_degree = 4", "parallel_degree = 1")
    said = stated(tmp_path, flat, "run.toml", 64, 64)
    assert said == "data=8,tensor=8, recompute full, fsdp+tp+sp"


def test_megatron(tmp_path: Path) -> None:
    said = stated(tmp_path, MEGATRON, "megatron.args", 64, 128)
    parts = "32 micro-batches, interleaved:4, recompute selective, ddp+tp+sp"
    assert said == f"pipe=2,data=4,tensor=8, {parts}"


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("[parallelism]\nexpert_parallel_degree = 8", "a.toml", "expert_parallel_degree"),
        ("[parallelism]\ntensor_parallel_degree = 0", "a.toml", "1 or more"),
        ("[parallelism", "a.toml", "no TOML"),
        ("parallelism = 3", "a.toml", "no section"),
        ("[activation_checkpoint]\nmode = 'some'", "a.toml", "recompute 'some'"),
        ("--lr 3e-4", "a.args", "none of Megatron-LM's"),
        ("--micro-batch-size x", "a.args", "1 or more"),
        ("--tensor-model-parallel-size 3", "a.args", "multiple of 3"),
        ("--micro-batch-size 3", "a.args", "multiple of 48"),
        ("--micro-batch-size 1 --global-batch-size 32", "a.args", "a batch of 32"),
        ("[parallelism]\ndata_parallel_shard_degree = 8", "a.toml", "choose --devices 8"),
        ("[parallelism]\ndata_parallel_replicate_degree = 2", "a.toml", "groups of copies"),
    ],
)
def test_refusals(tmp_path: Path, text: str, name: str, says: str) -> None:
    with pytest.raises(IrcError, match="option-value") as raised:
        stated(tmp_path, text, name, 16, 64)
    assert says in str(raised.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(IrcError, match="file-missing"):
        read_stated("no/such/run.toml")
