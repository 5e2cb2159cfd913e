"""Clusters by name and from TOML."""

from pathlib import Path

import pytest

from irc.cluster.load import find_cluster, parse_cluster
from irc.errors import IrcError

LAB = """
name = "lab"
[device]
name = "A6000"
peak_tflops = { f32 = 38.0, bf16 = 110.0 }
memory_gb = 48
memory_gb_per_s = 600
launch_us = 7
[[link]]
devices = 4
gb_per_s = 20
latency_us = 1
emulated = ["all_to_all"]
"""


def test_a_file_gives_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(LAB)
    lab = find_cluster(str(path))
    assert (lab.name, lab.num_devices) == ("lab", 4)
    assert lab.device.flops("bf16") == 110e12
    assert lab.device.launch_s == pytest.approx(7e-6)
    assert lab.links[0].emulated == {"all_to_all"}


def test_presets_are_found_by_name() -> None:
    assert find_cluster("8xA100").device.memory_bytes == 80 * 10**9


def test_an_unknown_name_suggests_a_close_one() -> None:
    with pytest.raises(IrcError, match="did you mean '8xH100'") as error:
        find_cluster("8xH10")
    assert error.value.code == "cluster-unknown"


def test_a_missing_file_is_named() -> None:
    with pytest.raises(IrcError, match="no-such") as error:
        find_cluster("no-such.toml")
    assert error.value.code == "file-missing"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("devices = 4", "devcies = 4", "did you mean 'devices'"),
        ("devices = 4", "", "'link.devices' is missing"),
        ("memory_gb = 48", "memory_gb = -1", "memory_gb is -1"),
        ("f32 = 38.0, ", "", "peak_tflops.f32"),
        ('["all_to_all"]', '["all_gather"]', "cannot emulate"),
        ("[[link]]", "[[link", "line"),
        ("gb_per_s = 20", 'gb_per_s = "fast"', "fast"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(old: str, new: str, said: str) -> None:
    with pytest.raises(IrcError, match=said) as error:
        parse_cluster(LAB.replace(old, new, 1), "lab.toml")
    assert error.value.code == "cluster-invalid"
