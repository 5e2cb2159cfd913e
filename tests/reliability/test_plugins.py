"""S15 and S17: what comes from others is run where it is named, and only there."""

# pyright: basic

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from irc.cli import main

ROOT = Path(__file__).parents[2]
BROKEN = {
    "fuse": "irc_bad_plugin:Fuse",  # the name of a pass of irc
    "raises": "irc_raising_plugin:Any",
    "absent": "irc_no_such_module:Any",
    "wrong": "json:loads",
    "twice": "irc_bad_plugin:Fuse",
}
NET = "import torch\ndef build(): return torch.nn.Linear(4, 4), (torch.ones(2, 4),)\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with plug-ins that are bad in all ways."""
    place = tmp_path / "site"
    for package, names in (("bad", [*BROKEN]), ("other", ["twice"])):
        info = place / f"irc_{package}_plugin-1.0.dist-info"
        info.mkdir(parents=True)
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: irc-{package}-plugin\n"
                                             "Version: 1.0\n")  # fmt: skip
        lines = "".join(f"{name} = {BROKEN[name]}\n" for name in names)
        info.joinpath("entry_points.txt").write_text(f"[irc.passes]\n{lines}")
    place.joinpath("irc_raising_plugin.py").write_text("raise RuntimeError('not today')\n")
    place.joinpath("irc_bad_plugin.py").write_text("class Fuse: name = 'fuse'\n")
    monkeypatch.syspath_prepend(str(place))
    return place


@pytest.mark.filterwarnings("ignore::irc.installed.PluginWarning")
@pytest.mark.usefixtures("site")
def test_s17_bad_plugins_harm_only_who_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A clash with a pass of irc, a module that raises or is missing, a wrong type, one name twice.

    Commands that name none of them work; what names one ends with an error that names its package.
    """
    net = tmp_path / "net.py"
    net.write_text(NET)
    assert main(["compile", f"{net}:build", "-o", str(tmp_path / "plan")]) == 0
    assert main(["run", str(tmp_path / "plan")]) == 0
    assert main(["check", str(tmp_path / "plan")]) == 0
    assert main(["explain", "plan", str(tmp_path / "plan")]) == 0
    capsys.readouterr()
    assert main(["list", "passes"]) == 0
    listed = capsys.readouterr().out
    assert "irc has a pass of this name" in listed
    for name, code in (
        ("fuse", "plugin-clash"),
        ("raises", "plugin-broken"),
        ("absent", "plugin-broken"),
        ("wrong", "plugin-broken"),
        ("twice", "plugin-clash"),
    ):
        assert main(["compile", f"{net}:build", "-o", str(tmp_path / name), "--pass", name]) == 2
        errors = capsys.readouterr().err
        assert errors.startswith(f"error[{code}]"), errors
        assert "irc-bad-plugin" in errors
        assert not (tmp_path / name).exists()


class Canary:
    """What a pickle runs when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open, (str(self.path), "w")  # type: ignore[return-value]


def test_s15_no_pickle_is_read(tmp_path: Path) -> None:
    """A checkpoint or exported program is refused unread, whatever it is called; no audit event."""
    canary = tmp_path / "canary"
    content = pickle.dumps(Canary(canary))
    torch.save({"weight": Canary(canary)}, tmp_path / "zip.pt")
    (tmp_path / "plain.pkl").write_bytes(content)
    files = [tmp_path / "plain.pkl", tmp_path / "zip.pt"]
    for name in ("model.onnx", "model.pt2", "net.pth"):
        (tmp_path / name).write_bytes((tmp_path / "zip.pt").read_bytes())
        files.append(tmp_path / name)
    (tmp_path / "pickled.onnx").write_bytes(content)
    files.append(tmp_path / "pickled.onnx")
    code = (
        "import sys\n"
        "seen = []\n"
        "sys.addaudithook(lambda event, _: seen.append(event) if event.startswith('pickle.') or"
        " event in ('os.system', 'subprocess.Popen', 'socket.bind') else None)\n"
        "from irc.cli import main\n"
        "for path in sys.argv[2:]:\n"
        "    for words in (['compile', path, '-o', sys.argv[1]], ['run', path], ['check', path],\n"
        "                  ['explain', 'plan', path], ['opt', path]):\n"
        "        assert main(words) in (2, 3), words\n"
        "assert not seen, seen\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out"), *map(str, files)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "internal" not in done.stderr
    assert not canary.exists()
