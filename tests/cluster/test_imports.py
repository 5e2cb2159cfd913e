"""Clusters from what nvidia-smi, NCCL and Slurm say of machines."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from irc.cli import main
from irc.cluster.imports.build import import_cluster
from irc.cluster.imports.slurm import read_switches
from irc.cluster.load import find_cluster
from irc.cluster.presets import PRESETS
from irc.errors import IrcError

Write: TypeAlias = Callable[[str, str], str]
"""Writes a text to a file of a name, and returns its path."""


def matrix(gpus: int, cell: str = "NV18", cards: int = 0) -> str:
    """Return what `nvidia-smi topo -m` prints where every pair of GPUs is joined alike."""
    heads = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(cards)]
    lines = ["\t" + "\t".join(heads) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for i, head in enumerate(heads):
        both = i < gpus
        cells = [
            " X " if i == j else cell if both and j < gpus else "SYS" for j in range(len(heads))
        ]
        lines.append(f"{head}\t" + "\t".join(cells) + "\t0-55\t0\tN/A" * both)
    return "\n".join(lines) + "\n\nLegend:\n\n  X    = Self\n  NV#  = Connection ... NVLinks\n"


def nccl(gpus: int, links: list[list[tuple[str, int, str]]], device: str, mbits: list[int]) -> str:
    """Return a topology as NCCL writes it."""
    rows = [
        f'<pci busid="0000:{i:02x}:00.0" class="0x030200" vendor="0x10de" device="{device}"'
        f' link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="{i}" sm="90" rank="{i}" gdr="1">'
        + "".join(f'<nvlink target="{t}" count="{n}" tclass="{c}"/>' for t, n, c in links[i])
        + "</gpu></pci>"
        for i in range(gpus)
    ]
    nets = [
        f'<nic><net name="mlx5_{i}" dev="{i}" speed="{s}" port="1" guid="0x{i}" gdr="1"/></nic>'
        for i, s in enumerate(mbits)
    ]
    inside = "".join(rows + nets)
    return f'<system version="1"><cpu numaid="0" arch="x86_64">{inside}</cpu></system>'


SWITCHES = [("0000:fa:00.0", 9, "0x068000"), ("0000:fb:00.0", 9, "0x068000")]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return written


def test_a_node_behind_switches_is_the_preset(write: Write) -> None:
    for text, kind in (
        (matrix(8, cards=8), "H100"),
        ("\x1b[4m" + matrix(8).replace("\tGPU1", "\x1b[0m\tGPU1", 1), "H100"),
        (nccl(8, [SWITCHES] * 8, "0x2330", [400_000] * 8), ""),
    ):
        cluster = import_cluster([write("node", text)], kind=kind, nodes=2).cluster
        preset = PRESETS["2x8xH100"]
        assert cluster.device == preset.device
        assert cluster.links[0] == preset.links[0]
        assert cluster.links[1].devices == 16
        assert cluster.links[1].bytes_per_s == pytest.approx(preset.links[1].bytes_per_s)


def test_fewer_links_and_fewer_ports_are_slower(write: Write) -> None:
    half = [[("0000:fa:00.0", 9, "0x068000")]] * 4
    text = nccl(4, half, "0x2330", [400_000, 400_000])
    cluster = import_cluster([write("node.xml", text)], nodes=2).cluster
    preset = PRESETS["2x8xH100"]
    assert cluster.links[0].bytes_per_s == pytest.approx(preset.links[0].bytes_per_s / 2)
    assert cluster.links[1].bytes_per_s == pytest.approx(preset.links[1].bytes_per_s / 2)
    assert cluster.links[1].shared_bytes_per_s == pytest.approx(2 * 50e9 * 0.8)


def test_gpus_that_are_wired_to_each_other_are_a_graph(write: Write) -> None:
    # A square: 0-1 and 2-3 have two links, 0-2 and 1-3 one; the diagonals go over PCIe.
    wires = {(0, 1): 2, (2, 3): 2, (0, 2): 1, (1, 3): 1}
    links = [
        [
            (f"0000:{a + b - i:02x}:00.0", n, "0x030200")
            for (a, b), n in wires.items()
            if i in (a, b)
        ]
        for i in range(4)
    ]
    text = nccl(4, links, "0x1db5", [100_000])
    graph = import_cluster([write("node.xml", text)], nodes=2).cluster.graph
    assert graph is not None and graph.num_devices == 8
    speeds = {edge.ends: edge.bytes_per_s for edge in graph.edges}
    assert speeds[0, 1] == 2 * speeds[0, 2] == speeds[4, 5]
    assert speeds[0, "host0"] == pytest.approx(16e9 / 8 * 16 * 128 / 130 * 0.8)
    assert (0, 3) not in speeds and (0, "network") in speeds


def test_switches_between_nodes_are_levels(write: Write) -> None:
    switches = "\n".join(
        [f"SwitchName=leaf{i} Nodes=n[{8 * i:03}-{8 * i + 7:03}]" for i in range(4)]
        + ["# a comment", "SwitchName=spine Switches=leaf[0-3]"]
    )
    files = [write("topology.conf", switches), write("node", matrix(8))]
    got = import_cluster(files, kind="H100", name="lab")
    assert [link.devices for link in got.cluster.links] == [8, 64, 256]
    assert any("one speed" in note for note in got.notes)
    with pytest.raises(IrcError, match="have 32 nodes, not 16"):
        import_cluster(files, kind="H100", nodes=16)
    with pytest.raises(IrcError, match="describes the switches already"):
        import_cluster([*files, files[0]], kind="H100")
    leaves = "SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[3-6]\nSwitchName=c Switches=a,b"
    with pytest.raises(IrcError, match="does not hold whole groups"):
        import_cluster([files[1], write("overlapping.conf", leaves)], kind="H100")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-8]", "no switch joins a, b"),
        (
            "SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n5\nSwitchName=c Switches=a,b",
            "different",
        ),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "no switch has nodes"),
        ("SwitchName=a Nodes=n[1-99999999]", "a range of nodes"),
        ("SwitchName=a Nodes=n[-5]", "a range of nodes"),
        ("SwitchName=a Nodes=n[1-3-5]", "a range of nodes"),
        ("SwitchName=a Nodes=n[3-1]", "a range of nodes"),
        ("SwitchName=a Nodes=n[0-999]m[0-999]", "more than"),
        ("SwitchName=a Nodes=n[1", "a list of nodes"),
        (
            "SwitchName=c Nodes=n1\nSwitchName=d Nodes=n2\nSwitchName=x Switches=c,x\n"
            "SwitchName=y Switches=d,y",
            "hang on each other",
        ),
    ],
)
def test_switches_that_cannot_be(text: str, problem: str) -> None:
    with pytest.raises(IrcError, match=problem):
        read_switches(text)


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        (matrix(8), "", "does not say what the GPUs are"),
        (matrix(8), "H1000", "no kind of GPU"),
        (matrix(8).replace("NV18", "NV12", 1), "H100", "differ about each other"),
        (matrix(8).replace("NV18", "NVX", 1), "H100", "a cell 'NVX'"),
        (matrix(8, "SYS"), "H100", "does not say how fast"),
        (matrix(8), "L4", "L4 has none"),
        (matrix(3).partition("\t NV18\t X \t0-55")[0].rpartition("NV18\t X")[0], "H100", "row 2"),
        (matrix(8)[:120], "H100", "columns and 1 rows"),
        ("hello", "", "none of what is known"),
        ("<system><cpu>", "", "no element|unclosed|mismatched"),
        ("<system></system>", "", "no GPU is in it"),
        (nccl(1, [[]], "0x2330", []).replace('dev="0"', 'dev="x"'), "", "invalid literal"),
        (nccl(2, [[], []], "0x9999", []), "", "of no kind that is known"),
    ],
)
def test_descriptions_that_cannot_be_read(write: Write, text: str, kind: str, problem: str) -> None:
    with pytest.raises(IrcError, match=problem) as caught:
        import_cluster([write("node", text)], kind=kind)
    assert caught.value.code in ("cluster-import", "cluster-unknown")


def test_the_command_writes_a_cluster(
    write: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node, lab = write("node.txt", matrix(8, cards=10)), str(tmp_path / "lab.toml")
    assert main(["cluster", "import", node, "--kind", "H100", "--nodes", "4", "-o", lab]) == 0
    cluster = find_cluster(lab)
    assert (cluster.name, cluster.num_devices) == ("lab", 32)
    assert "10 network cards, as fast as the preset's" in Path(lab).read_text()
    assert main(["cluster", "import"]) == 2
    assert main(["cluster", "import", node, "--kind", "H100", "--nodes", "0"]) == 2
    assert main(["cluster", "show", "8xH100", "8xA100"]) == 2
    assert main(["cluster", "show", "--kind", "H100"]) == 2
    assert main(["cluster", "import", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    for words in ("wants the files", "1 or more", "takes one name", "--kind is for", "cannot read"):
        assert words in said
