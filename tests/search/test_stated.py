"""Configurations that torchtitan's and Megatron-LM's settings state."""

from __future__ import annotations

from pathlib import Path

import pytest

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.search.configurations import Configuration
from irc.search.judge import Judged, Verdict
from irc.search.stated import read_stated
from irc.search.write_stated import settings, written

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


def test_what_torchtitan_does_where_nothing_is_said(tmp_path: Path) -> None:
    """Eight samples of a rank, and every second layer recomputed."""
    said = stated(tmp_path, "[training]\nseq_len = 8192", "run.toml", 8, 128)
    assert said == "data=8, 2 micro-batches, recompute none; every 2 = full, fsdp"


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
        ("[project]\nname = 'a'", "a.toml", "none of torchtitan's sections"),
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


@pytest.mark.parametrize("name", ["a.toml", "a.args"])
@pytest.mark.parametrize(
    ("mesh", "count", "schedule", "recompute", "layout"),
    [
        ("data=8", 2, "1f1b", "none", "ddp"),
        ("data=8", 1, "1f1b", "full", "fsdp"),
        ("data=2,tensor=4", 4, "1f1b", "full", "fsdp+tp+sp"),
        ("pipe=2,data=2,tensor=2", 8, "interleaved:2", "none", "ddp+tp+sp"),
        ("pipe=4,data=2", 16, "1f1b", "none", "fsdp"),
    ],
)
def test_what_is_written_reads_back(
    tmp_path: Path, name: str, mesh: str, count: int, schedule: str, recompute: str, layout: str
) -> None:
    own = Configuration(Mesh.parse(mesh), count, schedule, recompute, layout)
    path = tmp_path / name
    path.write_text(settings(name, own, 64, 4096))
    assert read_stated(str(path)).on(8, 64) == own


@pytest.mark.parametrize(
    ("name", "recompute", "said"),
    [
        ("a.toml", "every-second-matmul", 'selective_ac_option = "op"'),
        ("a.toml", "none; every 2 = full", 'selective_ac_option = "2"'),
        ("a.args", "selective", "--recompute-granularity selective"),
        ("a.args", "none; first 3 = full", "--recompute-num-layers 3"),
    ],
)
def test_recompute_of_layers(tmp_path: Path, name: str, recompute: str, said: str) -> None:
    own = Configuration(Mesh.parse("data=8"), 1, "1f1b", recompute, "fsdp")
    path = tmp_path / name
    path.write_text(settings(name, own, 64))
    assert said in path.read_text()
    assert read_stated(str(path)).on(8, 64) == own


def test_what_a_trainer_cannot_be_told() -> None:
    best = Judged(Configuration(Mesh.parse("pipe=8"), 8, "zb-h1"), Verdict(1.0, 10))
    next_ = Judged(Configuration(Mesh.parse("pipe=8"), 8), Verdict(1.1, 10))
    own = written("a.toml", [best, next_], 64)
    assert own.judged is next_
    assert own.note.startswith("torchtitan has no word for a schedule 'zb-h1'")
    with pytest.raises(IrcError, match="Megatron-LM has no word for a schedule 'zb-h1'"):
        written("a.args", [best], 64)
    with pytest.raises(IrcError, match="recompute 'cheap'"):
        settings("a.toml", Configuration(Mesh.parse("data=8"), recompute="cheap"), 64)


def test_what_lies_in_parts_is_written() -> None:
    def own(mesh: str, in_parts: int) -> Configuration:
        return Configuration(Mesh.parse(mesh), 2, in_parts=in_parts)

    assert "--use-distributed-optimizer" in settings("a.args", own("data=4,tensor=2", 1), 64)
    assert "--use-torch-fsdp2" in settings("a.args", own("data=4", 2), 64)
    with pytest.raises(IrcError, match="no word for weights in parts beside stages"):
        settings("a.args", own("pipe=2,data=4", 2), 64)
    for name in ("a.args", "a.toml"):
        with pytest.raises(IrcError, match="no word for sums in parts over other axes than data"):
            settings(name, own("tensor=8", 1), 64)
    said = written("a.toml", [Judged(own("data=8", 1), Verdict(1.0, 10))], 64)
    assert "data_parallel_shard_degree = 8" in said.text
    assert "torchtitan stores weights in parts, too" in said.note


def test_what_constraints_say_of_layers_is_written() -> None:
    best = Judged(Configuration(Mesh.parse("data=8")), Verdict(1.0, 10))
    own = written("a.toml", [best], 64, pins="recompute every 2 = full; micro-batches = 1")
    assert 'selective_ac_option = "2"' in own.text
    assert "constraints" not in own.note
    own = written("a.toml", [best], 64, pins="*.up = [data = S(0)]")
    assert own.judged is best
    assert own.note.endswith("constraints but for recompute and micro-batches are not in it")
    with pytest.raises(IrcError, match=r"no word for recompute 'none; l.0 = full'"):
        written("a.toml", [best], 64, pins="recompute l.0 = full")
