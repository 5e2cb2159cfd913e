"""Calibration with tiny sizes, and detection."""

from pathlib import Path

import pytest

from irc.cli import main
from irc.cluster.load import find_cluster, parse_cluster
from irc.cluster.text import to_toml
from irc.cluster.topology import COLLECTIVES
from irc.cost.collectives import collective_s
from irc.dialects.placement import Mesh
from irc.tune import calibrate
from irc.tune.calibrate import Effort, calibrate_host, measure_device
from irc.tune.detect import detect
from irc.tune.launched import launch_environment
from irc.tune.others import Others

TINY = Effort(matmuls=(17, 33), copy_bytes=1 << 20, sizes=(64, 40_000), budget_s=0.001, ranks=(2,))


@pytest.mark.distributed
def test_what_is_measured_between_processes_is_read_back_from_a_file() -> None:
    calibration = calibrate_host(TINY)
    again = parse_cluster(to_toml(calibration.cluster))
    (link,) = again.links
    assert set(link.fits) == set(COLLECTIVES)
    axis = again.axis_link(Mesh.parse("d=2"), "d")
    for kind in COLLECTIVES:
        points = calibration.curves[0][kind]
        assert [point.ranks for point in points] == [2, 2]
        worst = max(point.seconds for point in points)
        assert 0 < collective_s(kind, axis, 40_000, 1e9) < 100 * worst
    assert "all_to_all" in str(calibration)


def test_a_device_is_measured() -> None:
    device, generated, library = measure_device(TINY)
    assert set(generated) == set(library) == {(d, n) for d in calibrate.DTYPES for n in (17, 33)}
    assert device.flops("f32") == max(generated["f32", 17], generated["f32", 33])
    assert device.bytes_per_s > 1e8
    assert 0 < device.launch_s < 1e-2
    assert device.cores > 0


def test_processes_that_say_nothing_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from irc.errors import IrcError

    monkeypatch.setattr(calibrate, "torchrun_command", lambda *_: ["false"])
    with pytest.raises(IrcError, match="ended early") as error:
        calibrate_host(TINY)
    assert error.value.code == "run-failed"


def test_the_command_writes_a_cluster_that_commands_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {k: [calibrate.Point(p, 64 * p, 1e-3 * p) for p in (2, 4)] for k in COLLECTIVES}
    monkeypatch.setattr(calibrate, "_exchange", lambda *_: points)
    monkeypatch.setattr(calibrate, "QUICK", TINY)
    monkeypatch.setattr("irc.commands.cluster._generated", lambda *_: lambda a, b: a @ b)
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "host.toml"
    assert main(["cluster", "calibrate", "--quick", "--anyway", "-o", str(path)]) == 0
    assert main(["cluster", "show", str(path), "--mesh", "d=2"]) == 0
    assert "measured" in capsys.readouterr().out
    assert (
        main(["cluster", "calibrate", "--quick", "--anyway", "-o", str(tmp_path / "no" / "x.toml")])
        == 2
    )
    assert main(["cluster", "calibrate", "--quick", "--anyway"]) == 0
    assert find_cluster("this-host").links[0].fits


def test_detection_says_what_there_is() -> None:
    machine = detect({"SLURM_JOB_NUM_NODES": "2", "PATH": "/secret"}, matmul=33)
    text = str(machine)
    assert machine.matmul_flops_per_s[1] > 0
    assert "float32 33 x 33" in text
    assert "SLURM_JOB_NUM_NODES" in text
    assert "secret" not in text


def test_a_launch_is_recognised() -> None:
    assert launch_environment({}) == {}
    assert launch_environment({"WORLD_SIZE": "1", "RANK": "0"}) == {}
    torchrun = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "1"}
    assert launch_environment({**torchrun, "HOME": "/"}) == torchrun
    # An allocation in which this is the batch script, not a step of several tasks.
    assert launch_environment({"SLURM_NTASKS": "8"}) == {}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["show", "8xH10"], "cluster-unknown"),
        (["show", "8xH100", "--mesh", "d"], "mesh-syntax"),
        (["show", "8xH100", "--mesh", "d=16"], "mesh-mismatch"),
        (["shwo"], "option-value"),
        (["calibrate", "8xH100"], "option-value"),
        (["detect", "8xH100"], "option-value"),
        (["detect", "-o", "x.toml"], "option-value"),
        (["show", "8xH100", "--quick"], "option-value"),
        (["show", "8xH100", "--anyway"], "option-value"),
        (["show", "--toml"], "option-value"),
        (["show", "8xH100", "--example"], "option-value"),
        (["show", "8xH100", "-o", "/nowhere/x.toml"], "output-write"),
    ],
)
def test_wrong_words_are_registered_errors(
    words: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", *words]) == 2
    assert f"error[{code}]" in capsys.readouterr().err


def test_show_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--toml"]):
        path = tmp_path / f"{len(options)}.toml"
        assert main(["cluster", "show", "2x8xH100", *options, "-o", str(path)]) == 0
        assert parse_cluster(path.read_text()).num_devices == 16
    assert "--cluster" in capsys.readouterr().out


def test_show_lists_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "show"]) == 0
    assert "8xMI300X: 8 devices" in capsys.readouterr().out
    assert main(["cluster", "show", "--example"]) == 0
    assert parse_cluster(capsys.readouterr().out).name == "lab"
    assert main(["cluster", "show", "2x8xH100", "--toml"]) == 0
    assert parse_cluster(capsys.readouterr().out).num_devices == 16


def test_a_busy_machine_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {k: [calibrate.Point(p, 64 * p, 1e-3 * p) for p in (2, 4)] for k in COLLECTIVES}
    monkeypatch.setattr(calibrate, "_exchange", lambda *_: points)
    monkeypatch.setattr(calibrate, "QUICK", TINY)
    monkeypatch.setattr(calibrate, "others_since", lambda: lambda: Others(1e4))
    monkeypatch.setattr("irc.commands.cluster._generated", lambda *_: lambda a, b: a @ b)
    path = tmp_path / "host.toml"
    assert main(["cluster", "calibrate", "--quick", "-o", str(path)]) == 2
    printed = capsys.readouterr()
    assert "memory bandwidth" in printed.out
    assert "error[machine-busy]" in printed.err
    assert not path.exists()
