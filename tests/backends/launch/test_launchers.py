"""Launch files of each system: what the cluster says reaches them, and their own parsers take them.

Parsers that are not installed skip their test: `pip install kubeflow-trainer-api skypilot torchx`.
"""

import os
import shlex
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import irc.cli
from irc.backends.launch.job import Job, job_of
from irc.backends.launch.render import FORMATS, render_launch
from irc.cluster.launching import Launching
from irc.cluster.load import parse_cluster
from irc.cluster.presets import PRESETS
from irc.cluster.text import to_toml
from irc.errors import IrcError
from tests.backends.launch.test_render import HOSTILE, run_script, saved
from tests.plan.programs import build_plan, sharded

OF_GPUS = Job(16, 2, Path("/plans/My plan"), "H100-80GB-SXM", Launching(image="lab/irc:1"))


def test_nodes_and_gpus_are_the_clusters(tmp_path: Path) -> None:
    plan = replace(build_plan(sharded()), cluster="4x2xH100", backend="triton")
    job = job_of(plan, 4, tmp_path, None, Launching(partition="gpu", time="1-12"))
    assert (job.nodes, job.ranks_per_node, job.gpu) == (2, 2, "H100-80GB-SXM")
    lines = FORMATS["slurm"].write(job).splitlines()
    for line in ("--nodes=2", "--gpus-per-node=2", "--partition=gpu", "--time=1-12"):
        assert f"#SBATCH {line}" in lines
    # Kernels for CPUs ask for no GPU, whatever the prices are of.
    job = job_of(replace(plan, backend="cpu"), 4, tmp_path, None, Launching())
    assert "gpus-per-node" not in FORMATS["slurm"].write(job)


def test_a_cluster_file_says_what_launchers_ask(tmp_path: Path) -> None:
    cluster = replace(PRESETS["2x8xH100"], name="lab", launching=Launching("gpu,long", "me"))
    file = tmp_path / "lab.toml"
    file.write_text(to_toml(cluster))
    assert parse_cluster(file.read_text()).launching == cluster.launching
    plan = replace(build_plan(sharded()), cluster=str(file), backend="cuda")
    job = job_of(plan, 4, tmp_path, None, Launching(partition="short"))
    text = FORMATS["slurm"].write(job)
    assert "#SBATCH --partition=short\n" in text
    assert "#SBATCH --account=me\n" in text
    file.unlink()
    job = job_of(plan, 4, tmp_path, None, Launching())
    text = FORMATS["slurm"].write(job)
    assert "lab.toml is not here" in text
    assert "#SBATCH --gpus-per-node=4\n" in text
    with pytest.raises(IrcError, match="by their names"):
        FORMATS["skypilot"].write(job)
    file.write_text("name = 1")
    with pytest.raises(IrcError) as caught:
        job_of(plan, 4, tmp_path, None, Launching())
    assert caught.value.code == "cluster-invalid"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('partition = "a b"', "names of partitions"), ('time = "soon"', "a time of Slurm"),
        ('image = "x\\" y"', "container image"), ('hosts = "-oProxyCommand=x"', "names of hosts"),
        ('partitoin = "a"', "did you mean 'partition'"), ("time = 60", "must be a text"),
    ],
)  # fmt: skip
def test_wrong_values_of_a_cluster_file(table: str, problem: str) -> None:
    with pytest.raises(IrcError, match=problem) as raised:
        parse_cluster(f"{to_toml(PRESETS['2x8xH100'])}\n[launch]\n{table}\n")
    assert raised.value.code == "cluster-invalid"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--image x", "a launch file for torchrun has no place for --image"),
        ("--format slurm --hosts a", "--format ssh has"),
        ("--format slurm --time soon", "--time is 'soon'"),
        ("--format ssh --hosts -a", "expected one argument"),
        ("--format slurm --nodes 0", "do not divide among 0 nodes"),
    ],
)
def test_wrong_options(
    words: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert irc.cli.main(["launch", str(saved(tmp_path / "plan")), *words.split()]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("name", HOSTILE)
def test_manifests_name_the_folder(name: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "plans" / name)
    job = yaml.safe_load(render_launch(str(folder), "kubeflow"))
    assert job["spec"]["trainer"]["args"] == ["-m", "irc.runtime.worker", str(folder)]
    task = yaml.safe_load(render_launch(str(folder), "skypilot"))
    assert task["file_mounts"] == {"/tmp/irc-plan": str(folder)}
    words = run_script(render_launch(str(folder), "torchx"), tmp_path, "--seed=1")
    assert words[-3:] == ["--", str(folder), "--seed=1"]
    assert not (tmp_path / "canary").exists()


def test_what_a_task_of_skypilot_runs(tmp_path: Path) -> None:
    task = yaml.safe_load(FORMATS["skypilot"].write(OF_GPUS))
    assert task["resources"] == {"accelerators": "H100:8", "image_id": "docker:lab/irc:1"}
    nodes = {"IPS": "10.0.0.1\n10.0.0.2", "NUM_NODES": "2", "NODE_RANK": "1"}
    exports = "".join(f"export SKYPILOT_{k}={shlex.quote(v)}\n" for k, v in nodes.items())
    exports = exports.replace("SKYPILOT_IPS", "SKYPILOT_NODE_IPS")
    words = run_script(f"#!/bin/bash\n{exports}{task['run']}", tmp_path)
    assert words[words.index("--master-addr") + 1] == "10.0.0.1"
    assert words[words.index("--node-rank") + 1] == "1"
    assert words[-2:] == ["irc.runtime.worker", "/tmp/irc-plan"]


def ssh_script(tmp_path: Path, on_host: str) -> tuple[int, str]:
    """Run a script for two hosts, whose ssh runs some shell; return its status and what it said."""
    (tmp_path / "ssh").write_text(f"#!/bin/bash\nhost=$4\n{on_host}\n")
    (tmp_path / "ssh").chmod(0o755)
    job = Job(4, 2, Path("/plan"), launching=Launching(hosts="me@one,two"))
    (tmp_path / "script").write_text(FORMATS["ssh"].write(job))
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(
        ["bash", str(tmp_path / "script"), "--steps", "2 3"],
        env=path,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_ssh_starts_every_host(tmp_path: Path) -> None:
    status, said = ssh_script(tmp_path, 'echo "$host: $5"')
    assert status == 0
    for host in ("me@one", "two"):
        assert f"{host}: exec torchrun --nnodes 2 --nproc-per-node 2" in said
    assert said.count("--rdzv-endpoint one:29500 -m irc.runtime.worker /plan --steps 2\\ 3") == 2


def test_ssh_ends_all_hosts_when_one_fails(tmp_path: Path) -> None:
    start = time.monotonic()
    status, _ = ssh_script(
        tmp_path, 'if [ "$host" = two ]; then exit 3; fi; exec sleep 25 > /dev/null 2>&1'
    )
    assert (status, time.monotonic() - start < 20) == (3, True)


def test_ssh_wants_as_many_hosts_as_nodes(tmp_path: Path) -> None:
    text = FORMATS["ssh"].write(Job(4, 2, Path("/plan"), launching=Launching(hosts="one")))
    ended = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=False, timeout=30
    )
    assert (ended.returncode, ended.stderr) == (
        2, "the plan runs on 2 hosts, and HOSTS names 1\n",
    )  # fmt: skip


@pytest.mark.parametrize("form", ["torchrun", "slurm", "ssh", "torchx"])
@pytest.mark.parametrize("job", [OF_GPUS, Job(4, 1, Path("/it's"))])
def test_shells_parse_the_scripts(form: str, job: Job) -> None:
    text = FORMATS[form].write(job)
    shell = text.partition("\n")[0].rpartition("/")[2]
    subprocess.run([shell, "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize("job", [OF_GPUS, Job(4, 1, Path("/plan"))])
def test_kubeflow_takes_it(job: Job) -> None:
    models: Any = pytest.importorskip("kubeflow_trainer_api.models")
    manifest = yaml.safe_load(FORMATS["kubeflow"].write(job))
    checked = models.TrainerV1alpha1TrainJob.from_dict(manifest)
    assert checked.to_dict() == manifest  # a key that it does not know would be lost


@pytest.mark.parametrize("job", [OF_GPUS, Job(4, 1, Path("/plan"))])
def test_skypilot_takes_it(job: Job, tmp_path: Path) -> None:
    sky: Any = pytest.importorskip("sky")
    (tmp_path / "plan").mkdir()
    job = replace(job, folder=tmp_path / "plan")
    text = FORMATS["skypilot"].write(job)
    task = sky.Task.from_yaml_config(yaml.safe_load(text))
    assert task.num_nodes == job.nodes
    assert task.name == job.label


@pytest.mark.parametrize("job", [OF_GPUS, Job(4, 1, Path("/plan"))])
def test_torchx_takes_it(job: Job) -> None:
    dist: Any = pytest.importorskip("torchx.components.dist")
    builders: Any = pytest.importorskip("torchx.specs.builders")
    text = FORMATS["torchx"].write(job)
    words = shlex.split(text.partition("    dist.ddp ")[2].replace('"$plan"', str(job.ranks)))
    (role,) = builders.materialize_appdef(dist.ddp, [word for word in words if word != "$@"]).roles
    assert (role.num_replicas, role.resource.gpu) == (job.nodes, 8 if job.gpu else 0)
    assert any("irc.runtime.worker" in each for each in role.args)
