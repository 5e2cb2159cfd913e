"""Launch files: they start what they say, and names from outside stay names."""

import json
import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest

import irc.cli
from irc.backends.launch.job import Job
from irc.backends.launch.render import FORMATS, launch_files, render_launch
from irc.errors import IrcError
from irc.plan.save import make_plan, save_plan
from tests.plan.programs import build_plan, sharded

HOSTILE = [
    "plain", "a b", "it's", '"quoted"', "$(touch canary)", "`touch canary`", "; touch canary",
    "x#SBATCH --partition=evil", "-rf", "--help", "a\\", "*", "~", "%j",
    "\u00e9\u4e2d", "&& touch canary", "${HOME}", "#", "!!",
]  # fmt: skip


def saved(place: Path) -> Path:
    save_plan(place, make_plan(build_plan(sharded())))
    return place


def run_script(text: str, tmp_path: Path, *words: str, name: str = "script") -> list[str]:
    """Run a script with stand-ins for torchrun and Slurm; return what torchrun was given."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for tool, body in {
        "torchrun": 'printf "%s\\0" "$@" > "$SAID"',
        "srun": '"$@"',
        "scontrol": "echo node7; echo node8",
        "ssh": 'shift 3; export SSH_HOST=$1; eval "$2"',
        "torchx": 'printf "%s\\0" "$@" > "$SAID"',
    }.items():
        (tools / tool).write_text(f"#!/bin/sh\n{body}\n")
        (tools / tool).chmod(0o755)
    script = tmp_path / name
    script.parent.mkdir(exist_ok=True)
    script.write_text(text)
    said = tmp_path / "said"
    subprocess.run(
        ["bash" if text.startswith("#!/bin/bash") else "sh", str(script), *words],
        cwd=tmp_path,
        check=True,
        env={
            **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SAID": str(said),
            "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_ID": "99", "HEAD": "node7",
        },
    )  # fmt: skip
    return said.read_text().split("\0")[:-1]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("form", ["torchrun", "slurm", "ssh"])
def test_hostile_names_stay_names(name: str, form: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "plans" / name)
    text = render_launch(str(folder), form, None, {"hosts": "node7"} if form == "ssh" else None)
    arguments = run_script(text, tmp_path)
    assert arguments[arguments.index("-m") :] == ["-m", "irc.runtime.worker", str(folder)]
    assert not (tmp_path / "canary").exists()
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert len(directives) == (5 if form == "slurm" else 0)
    assert not any("evil" in line and "partition=" in line for line in directives)


@pytest.mark.parametrize("name", ["x\n#SBATCH --partition=evil", "x\ntouch canary\n", "\x1b[2J"])
def test_control_characters_are_refused(name: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / name)
    with pytest.raises(IrcError, match="control characters"):
        render_launch(str(folder), "slurm")


def test_a_plan_carries_files_without_paths(tmp_path: Path) -> None:
    files = launch_files(build_plan(sharded()))
    assert sorted(files) == ["launch/slurm.sbatch", "launch/torchrun.sh"]
    arguments = run_script(
        files["launch/torchrun.sh"], tmp_path, "--compare", name="launch/torchrun.sh"
    )
    assert arguments[-6:] == ["--nproc-per-node", "4", "-m", "irc.runtime.worker", str(tmp_path),
                          "--compare"]  # fmt: skip
    # The ranks meet in files: nothing listens but on the loopback interface.
    assert arguments[arguments.index("--rdzv-conf") + 1] == "store_type=file"
    assert arguments[arguments.index("--local-addr") + 1] == "127.0.0.1"
    meet = Path(arguments[arguments.index("--rdzv-endpoint") + 1]).parent
    until = time.monotonic() + 20
    while meet.exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    arguments = run_script(files["launch/slurm.sbatch"], tmp_path, "/shared/my plan", "--seed=1")
    assert arguments[-3:] == ["irc.runtime.worker", "/shared/my plan", "--seed=1"]
    plan = make_plan(build_plan(sharded()), extra=files)
    assert plan.hash == make_plan(build_plan(sharded()), extra=launch_files(plan.plan)).hash


@pytest.mark.parametrize("form", ["torchrun", "slurm"])
def test_several_nodes(form: str, tmp_path: Path) -> None:
    arguments = run_script(render_launch(str(saved(tmp_path / "plan")), form, nodes=2), tmp_path)
    assert arguments[arguments.index("--nnodes") + 1] == "2"
    assert arguments[arguments.index("--nproc-per-node") + 1] == "2"
    assert arguments[arguments.index("--rdzv-endpoint") + 1] == "node7:29500"


def test_json(tmp_path: Path) -> None:
    folder = saved(tmp_path / "plan")
    data = json.loads(render_launch(str(folder), "json"))
    assert (data["nodes"], data["ranks_per_node"]) == (1, 4)
    words = [*data["command"], "--seed=1"]
    arguments = run_script(f"exec {shlex.join(words)}", tmp_path)
    assert arguments[-3:] == ["irc.runtime.worker", str(folder), "--seed=1"]
    # As the script's: nothing listens but on the loopback interface.
    assert arguments[arguments.index("--rdzv-conf") + 1] == "store_type=file"
    assert arguments[arguments.index("--local-addr") + 1] == "127.0.0.1"
    assert "--standalone" not in arguments
    two = json.loads(render_launch(str(folder), "json", nodes=2))
    arguments = run_script(f"exec {shlex.join(two['command'])}", tmp_path)
    assert arguments[arguments.index("--rdzv-endpoint") + 1] == "node7:29500"


def test_the_torchrun_command_is_one_that_torchrun_takes() -> None:
    from torch.distributed.run import get_args_parser

    for nodes in (1, 2):
        text = FORMATS["torchrun"].write(Job(4, nodes, Path("/plan")))
        command = text.partition("exec torchrun ")[2].replace("\\\n", " ")
        args = get_args_parser().parse_args(shlex.split(command))
        assert (args.training_script, args.nproc_per_node) == (
            "irc.runtime.worker",
            str(4 // nodes),
        )


def test_ranks_divide_among_nodes(tmp_path: Path) -> None:
    folder = saved(tmp_path / "plan")
    with pytest.raises(IrcError, match="4 ranks do not divide among 3 nodes"):
        render_launch(str(folder), "slurm", nodes=3)
    with pytest.raises(IrcError, match="did you mean 'slurm'"):
        render_launch(str(folder), "slrum")


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "plan")
    assert irc.cli.main(["launch", str(folder), "--format", "slurm", "--nodes", "4"]) == 0
    assert "#SBATCH --nodes=4" in capsys.readouterr().out
