"""Clusters by name and from TOML."""

from pathlib import Path

import pytest

from irc.cluster.cache import write_text
from irc.cluster.load import MAX_BYTES, example, find_cluster, parse_cluster
from irc.cluster.presets import PRESETS
from irc.cluster.text import describe, to_toml
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


def test_what_runs_at_a_time_slows_each_other_down_as_a_file_says() -> None:
    rows = "interference = [{compute = 1.25, link = 2}, {compute = 1.5, nic = 1}]\n[[link]]"
    lab = parse_cluster(LAB.replace("[[link]]", rows))
    assert lab.device.interference.rates(["compute", "link"]) == {"compute": 0.8, "link": 0.5}
    assert parse_cluster(to_toml(lab)) == lab
    assert "compute = 1.25, link = 2" in describe(lab)


def test_a_file_says_what_kernels_reach() -> None:
    said = "memory_gb = 48\nunits = 84\nattention = { forward = 0.9, backward = 0.7 }"
    lab = parse_cluster(LAB.replace("memory_gb = 48", said))
    assert (lab.device.units, lab.device.attention, lab.device.attention_backward) == (84, 0.9, 0.7)
    assert parse_cluster(to_toml(lab)) == lab
    assert "84 units" in describe(lab)
    assert "90% of that forward, 70% backward" in describe(lab)
    unsaid = parse_cluster(LAB)
    assert unsaid.device.units == 0
    assert "units" not in describe(unsaid)


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
        ("memory_gb = 48", "memory_gb = 48\ninterference = [{gpu = 1, nic = 1}]", "names 'gpu'"),
        ("memory_gb = 48", "memory_gb = 48\ninterference = [{nic = 2}]", "two kinds at least"),
        ("memory_gb = 48", "memory_gb = 48\ninterference = [{nic = 0.5, link = 1}]", "nic = 0.5"),
        ("memory_gb = 48", "memory_gb = 48\ninterference = 3", "must be a table"),
        ("memory_gb = 48", "memory_gb = 48\nunits = 0.5", "units is 0.5"),
        ("memory_gb = 48", "memory_gb = 48\nunits = -1", "from 1 to"),
        ("memory_gb = 48", "memory_gb = 48\nattention = { forward = 0.9 }", "'device.units'"),
        ("gb = 48", "gb = 48\nunits = 8\nattention = { forward = 2 }", "forward is 2.0; it is a"),
        ("gb = 48", "gb = 48\nunits = 8\nattention = { forwards = 1 }", "'forward'"),
        ("gb = 48", "gb = 48\nunits = 8\nattention = 0.9", "attention must be a table"),
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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("devices = 4", "devices = 4.5"),
        ("devices = 4", "devices = 99999999999999999999"),
        ("devices = 4", "devices = true"),
        ("gb_per_s = 20", "gb_per_s = inf"),
        ("gb_per_s = 20", "gb_per_s = nan"),
        ("gb_per_s = 20", "gb_per_s = 0"),
        ("gb_per_s = 20", "gb_per_s = 1e400"),
        ("gb_per_s = 20", f"gb_per_s = {'9' * 5000}"),
        ("latency_us = 1", "latency_us = -1"),
        ("memory_gb = 48", "memory_gb = [48]"),
        ("{ f32 = 38.0, bf16 = 110.0 }", "38.0"),
        ('name = "A6000"', 'name = "a\\u001b[2J"'),
        ('name = "A6000"', 'name = ""'),
        ("[[link]]", "[link.fits.broadcast]\ngb_per_s = 1\n[[links]]"),
        ("[[link]]", "link = 3\n[[links]]"),
        ('["all_to_all"]', '[["all_to_all"]]'),
        ('["all_to_all"]', "[1]"),
        ("launch_us = 7", "cores = -2"),
        ("launch_us = 7", f"x = {'[' * 5000}{']' * 5000}"),
        ("[device]", "[[device]]\ncount = 3"),
        ("[[link]]", "[[edge]]\nbetween = [0, 1]\ngb_per_s = 1\nlatency_us = 1\n[[link]]"),
    ],
)
def test_a_hostile_file_ends_in_the_registered_error(old: str, new: str) -> None:
    text = LAB.replace(old, new, 1)
    assert text != LAB
    with pytest.raises(IrcError) as error:
        parse_cluster(text, "lab.toml")
    assert error.value.code == "cluster-invalid"
    assert len(error.value.render()) < 10_000


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\0", b"a" * (MAX_BYTES + 1), b""])
def test_a_file_that_is_no_text_ends_in_the_registered_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "lab.toml"
    path.write_bytes(data)
    with pytest.raises(IrcError) as error:
        find_cluster(str(path))
    assert error.value.code == "cluster-invalid"


def test_a_device_file_and_a_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    (tmp_path / "folder.toml").mkdir()
    for name in ("zero.toml", "folder.toml"):
        with pytest.raises(IrcError, match="regular file") as error:
            find_cluster(str(tmp_path / name))
        assert error.value.code == "cluster-invalid"
    with pytest.raises(IrcError) as error:
        find_cluster("a\0b.toml")
    assert error.value.code == "file-missing"


@pytest.mark.parametrize(
    ("name", "devices", "levels"),
    [
        ("64x8xH100", 512, 2),
        ("8xMI250X", 8, 2),
        ("3x8xMI250X", 24, 3),
        ("2xMI250X", 2, 1),
        ("1xH200", 1, 1),
        ("4x1xA100", 4, 1),
        ("2048x8xH200", 16384, 2),
    ],
)
def test_any_number_of_nodes_has_a_name(name: str, devices: int, levels: int) -> None:
    cluster = find_cluster(name)
    assert (cluster.name, cluster.num_devices, len(cluster.links)) == (name, devices, levels)


@pytest.mark.parametrize("name", ["0x8xH100", "8xB9000", "99999999x8xH100", "x8xH100", "3x7xH100"])
def test_other_names_are_unknown(name: str) -> None:
    with pytest.raises(IrcError) as error:
        find_cluster(name)
    assert error.value.code == "cluster-unknown"


@pytest.mark.parametrize("name", [*PRESETS, "64x8xH100"])
def test_a_cluster_written_and_read_is_the_same(name: str) -> None:
    text = to_toml(find_cluster(name), ("a comment",))
    again = parse_cluster(text)
    assert to_toml(again, ("a comment",)) == text
    assert len(describe(again)) > 100
    assert again.num_devices == find_cluster(name).num_devices


def test_the_documented_file_has_every_key_and_reads() -> None:
    cluster = parse_cluster(example())
    assert cluster.num_devices == 16
    assert cluster.links[1].tree
    everything = "\n".join(
        line.replace("# ", "", 1) for line in example().splitlines() if "=" in line
    )
    for key in ("peer_gb_per_s", "in_switch_gb_per_s", "shared_gb_per_s", "protocols", "cores"):
        assert key in everything


def test_this_host_is_what_was_measured_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    assert find_cluster("this-host").device.name == "host-core"
    write_text("this-host.toml", LAB.replace('"lab"', '"this-host"'))
    assert find_cluster("this-host").device.name == "A6000"
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(IrcError, match="others may write it") as error:
        find_cluster("this-host")
    assert error.value.code == "cache-unsafe"


def test_a_cache_folder_that_is_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "link"))
    with pytest.raises(IrcError) as error:
        write_text("this-host.toml", LAB)
    assert error.value.code == "cache-unsafe"
