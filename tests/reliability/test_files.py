"""Hostile text, plans and cache folders: S11 to S14 and S16."""

# pyright: basic
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from irc.cli import main
from irc.cluster.load import parse_cluster
from irc.commands.demo_onnx import write_perceptron
from irc.dialects.text import load
from irc.error_pages import REGISTRY
from irc.errors import IrcError
from irc.plan import json_text
from irc.plan.load import load_plan, pack, unpack
from tests.malformed.kinds import redo_digests

MODULE = "builtin.module {{\n{}\n}}\n"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    write_perceptron(folder / "model.onnx", batch=4, width=8, hidden=6)
    assert main(["compile", str(folder / "model.onnx"), "-o", str(folder / "plan")]) == 0
    return folder / "plan"


def refused(act: Callable[[], object]) -> str:
    """Return the code of the registered error that an act ends in."""
    with pytest.raises(IrcError) as caught:
        act()
    assert caught.value.code in REGISTRY
    assert REGISTRY[caught.value.code].exit_code != 70
    return caught.value.code


def test_s11_text_of_ir() -> None:
    """S11: depth, digits, splats, widths, strings, bytes, dialects and cycles of IR text."""
    loop = '  %a = "flow.pointwise"(%b) : (tensor<f32>) -> tensor<f32>'
    texts = (
        "[" * 10_000, MODULE.format("  " + "(" * 10_000), "builtin.module attributes {x = <<<<",
        MODULE.format("  %0 = arith.constant dense<1.0> : tensor<1099511627776xf32>"),
        f"builtin.module attributes {{x = {'9' * 5000}}} {{\n}}\n",
        'builtin.module attributes {x = "never closed} {\n}\n', "builtin.module {\n\0}\n",
        MODULE.format('  "nobody.op"() : () -> ()'), MODULE.format(loop), "\udcff",
    )  # fmt: skip
    for text in texts:
        assert refused(lambda text=text: load(text)) in ("ir-syntax", "ir-invalid", "ir-too-large")
    # What is only odd is read: a wide integer, and a resource, which irc has no use for.
    load(MODULE.format("  func.func @f(%x: i99999999999) { func.return }"))
    load('{-# dialect_resources: { builtin: { a: "0xFF" } } #-}' + MODULE.format(""))


def test_s12_json_and_toml() -> None:
    """S12: depth, equal keys, NaN and exponents; irc reads neither YAML nor XML."""
    deep = 100_000
    for text in (
        "[" * deep, '{"a":' * deep, '{"a": 1, "a": 2}', "[NaN]", "[Infinity]", "1" * 5000, b"\xff",
        "{", "",
    ):  # fmt: skip
        assert refused(lambda text=text: json_text.parse(text, "x.json")) == "plan-corrupt"
    for text in (
        "a = " + "[" * deep, "a = " + "{b = " * deep, "a = 1\na = 2", "name = nan", "a=1e999999",
        "[a]\n[a]", "a." * deep + "b = 1",
    ):  # fmt: skip
        assert refused(lambda text=text: parse_cluster(text)) == "cluster-invalid"


def test_s13_plans_that_were_changed(plan: Path, tmp_path: Path) -> None:
    """S13: a plan is a folder, and among ranks one string of bytes: no archive is unpacked.

    Names that lead out, links, newer versions, other digests, members twice, lengths that lie and
    what follows the end are refused, before and after digests were made again.
    """

    def harmed(change: Callable[[Path], object], *, again: bool = False) -> str:
        copy = Path(shutil.copytree(plan, tmp_path / "copy"))
        change(copy)
        if again:
            redo_digests(copy)
        code = refused(lambda: load_plan(copy))
        shutil.rmtree(copy)
        return code

    def named(name: str) -> Callable[[Path], object]:
        def change(folder: Path) -> None:
            listed = json.loads((folder / "manifest.json").read_bytes())
            listed["files"][name] = listed["files"].pop("plan.json")
            (folder / "manifest.json").write_text(json.dumps(listed))

        return change

    def linked(folder: Path) -> None:
        (folder / "plan.json").rename(tmp_path / "outside.json")
        (folder / "plan.json").symlink_to(tmp_path / "outside.json")

    def newer(folder: Path) -> None:
        text = (folder / "plan.json").read_text()
        (folder / "plan.json").write_text(text.replace('"format": 1', '"format": 99', 1))

    for name in ("../../evil", "/etc/passwd", "ir/../../evil", "a\\b", "plan\0json", "x.pkl"):
        assert harmed(named(name)) == "plan-corrupt"
    assert harmed(linked) == "plan-corrupt"
    assert harmed(newer) == "plan-corrupt"
    assert harmed(newer, again=True) == "plan-version"
    assert harmed(lambda folder: (folder / "plan.json").write_bytes(b"")) == "plan-corrupt"

    whole = pack(load_plan(plan))
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    assert unpack(whole).hash == load_plan(plan).hash

    def sent(header: list[list[object]], body: bytes = whole[8 + size :]) -> bytes:
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + body

    for data in (
        b"", whole[:-1], whole + b"more", b"\xff" * 8 + whole[8:], sent([*header, header[0]]),
        sent([[header[0][0], 2**62], *header[1:]]), sent([["../evil", header[0][1]], *header[1:]]),
        sent([[name, -1] for name, _ in header]), sent([]),
    ):  # fmt: skip
        assert refused(lambda data=data: unpack(data)) == "plan-corrupt"


CANARY = """
import sys
FORBIDDEN = {"pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork",
             "subprocess.Popen", "socket.bind", "socket.connect"}
seen = []
import irc.cli
sys.addaudithook(lambda event, _: seen.append(event) if event in FORBIDDEN else None)
status = irc.cli.main(["explain", "plan", sys.argv[1]])
print("SEEN", status, sorted(set(seen)))
"""


def test_s14_showing_a_plan_runs_nothing(plan: Path) -> None:
    """S14: no pickle, no command, no socket while a plan is read and explained."""
    done = subprocess.run(
        [sys.executable, "-c", CANARY, str(plan)], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["SEEN 0 []"], done.stdout[-500:] + done.stderr


def test_s16_cache_folders(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S16: a cache that is a link, open to others, read-only, full of others' files, or nowhere.

    Machine code from such a folder is not used; compiling goes on without a cache.
    """
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "mine.txt").write_text("keep")
    link, shared, closed, file = (tmp_path / name for name in ("link", "shared", "closed", "file"))
    link.symlink_to(victim)
    shared.mkdir()
    shared.chmod(0o777)
    closed.mkdir()
    closed.chmod(0o500)
    file.write_text("no folder")
    for number, root in enumerate((link, shared, closed, file, tmp_path / "new" / "deep")):
        monkeypatch.setenv("IRC_CACHE_DIR", str(root))
        before = os.umask(0)
        try:
            out = tmp_path / f"out{number}"
            with warnings.catch_warnings():
                # Said once in a process: that there is no cache.
                warnings.simplefilter("ignore")
                assert main(["compile", str(plan.parent / "model.onnx"), "-o", str(out)]) == 0
        finally:
            os.umask(before)
    assert [path.name for path in victim.iterdir()] == ["mine.txt"]
    assert not list(shared.iterdir())
    folders = [path for path in (tmp_path / "new" / "deep").rglob("*") if path.is_dir()]
    assert not [path for path in folders if path.stat().st_mode & 0o022]
