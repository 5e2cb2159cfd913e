"""examples/plugin: one of each thing that a package can add, installed and used by its name."""

# pyright: basic

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import irc
from irc.cli import main
from irc.errors import IrcError

PACKAGE = Path(__file__).parents[2] / "examples" / "plugin"


def metadata(folder: Path, name: str, groups: dict[str, dict[str, str]]) -> None:
    """Write what pip writes of a package."""
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    text = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
        for group, names in groups.items()
    )
    info.joinpath("entry_points.txt").write_text(text)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package and its metadata on the path."""
    site = tmp_path / "site"
    shutil.copytree(PACKAGE / "irc_example", site / "irc_example")
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    metadata(site, project["name"], project["entry-points"])
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "irc_example"]:
        # Its ops stay declared with torch, where a module that runs again declares them anew.
        del sys.modules[name]


def net(text: str) -> None:
    Path("net.py").write_text(
        f"import torch\nfrom torch import nn\nimport irc_example.ops, irc_example.library\n"
        "class Net(nn.Module):\n"
        f"    def forward(self, x, y):\n        return {text}\n"
        "def build():\n    return Net(), (torch.randn(8, 4), torch.randn(8, 4))\n"
    )


@pytest.mark.usefixtures("installed")
def test_each_part_is_used_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Pass, backend and ops by `irc compile`; the schedule and the policy by a training step."""
    net("torch.ops.irc_example.gated(nn.functional.gelu(x), y)")
    compiled = ["compile", "net.py:build", "-o", "plan", "--pass", "approximate-gelu"]
    assert main([*compiled, "--mesh", "data=2", "--pins", "pin op n1 = [data = S(0)]"]) == 0
    assert "replaced 1 gelu" in capsys.readouterr().err
    # The tanh form is another function, which is what `irc check` says of it.
    assert main(["check", "plan"]) == 1
    assert "pass approximate-gelu: flow.pointwise" in capsys.readouterr().err
    text = "".join(path.read_text() for path in sorted(Path("plan", "ir").iterdir()))
    assert "gelu_tanh" in text
    last = sorted(Path("plan", "ir").glob("*auto-shard.mlir"))[-1].read_text()
    (line,) = [line for line in last.splitlines() if "irc_example::gated" in line]
    assert line.endswith("[data = S(0)]>")

    assert main(["compile", "net.py:build", "-o", "listed", "--backend", "listing"]) == 0
    assert {path.suffix for path in Path("listed", "kernels").iterdir()} == {".loops"}
    assert main(["explain", "plan", "listed"]) == 0
    assert main(["run", "listed"]) == 2
    assert "error[backend-unknown]" in capsys.readouterr().err

    assert (
        main(["schedule", "show", "gpipe-last-first", "--ranks", "2", "--micro-batches", "3"]) == 0
    )
    capsys.readouterr()
    assert main(["schedule", "list"]) == 0
    assert "gpipe-last-first  [plug-in: irc-example]" in capsys.readouterr().out
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8), nn.GELU())
    step = irc.compile_step(
        model, loss=nn.MSELoss(), optimizer={"kind": "sgd"}, recompute="keep-products",
        micro_batches=2, schedule="gpipe-last-first",
    )  # fmt: skip
    x, y = torch.randn(2, 4, 8)
    expected = nn.functional.mse_loss(model(x), y)
    torch.testing.assert_close(step(x, y, lr=0.1), expected.detach())


@pytest.mark.usefixtures("installed")
def test_a_rule_alone_keeps_an_op_of_a_library_split(capsys: pytest.CaptureFixture[str]) -> None:
    net("torch.ops.irc_example_library.softsign_rows(x) + y")
    compiled = ["compile", "net.py:build", "-o", "plan", "--mesh", "data=2", "--pins"]
    assert main([*compiled, "pin op n0 = [data = S(1)]"]) != 0
    assert main([*compiled, "pin op n0 = [data = S(0)]"]) == 0
    capsys.readouterr()
    last = sorted(Path("plan", "ir").glob("*auto-shard.mlir"))[-1].read_text()
    (line,) = [line for line in last.splitlines() if "softsign_rows" in line]
    assert line.endswith("[data = S(0)]>")
    assert main(["check", "plan"]) == 0


@pytest.mark.usefixtures("installed")
def test_list_shows_what_it_registers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "irc-example 0.1.0\n" in listed
    assert "not imported" in listed
    assert not [name for name in sys.modules if name.partition(".")[0] == "irc_example"]
    assert main(["list", "--verbose", "--json"]) == 0
    those = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert {each["state"] for each in those.values()} == {"usable"}
    assert {each["kind"] for each in those.values()} == {
        *("pass", "backend", "ops", "schedule", "policy")
    }
    assert those["irc_example"]["about"] == "irc_example::gated"
    assert those["listing"]["about"] == "writes *.loops for cpu"
    assert main(["list", "passes", "--verbose"]) == 2


@pytest.mark.usefixtures("installed")
def test_names_that_are_nearly_right() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x, y = torch.randn(2, 4, 4)
    for options, said in (
        ({"schedule": "gpipe-last-frist", "micro_batches": 2}, "did you mean 'gpipe-last-first'"),
        ({"schedule": "gpipe-last-first:2", "micro_batches": 2}, "one stage a rank"),
        ({"recompute": "keep-product"}, "keep-products"),
        ({"recompute": "none; every 2 = keep-product"}, "did you mean 'keep-products'"),
        ({"pins": "recompute every 2 = keep product"}, "did you mean 'keep-products'"),
        ({"backend": "listin"}, "did you mean 'listing'"),
    ):
        with pytest.raises(IrcError, match=said):
            irc.compile_step(model, loss=nn.MSELoss(), optimizer={"kind": "sgd"}, **options)(x, y)
