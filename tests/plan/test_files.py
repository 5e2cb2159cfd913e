"""Plan folders: all or nothing when written; read exactly as written, or refused by name."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from irc.errors import IrcError
from irc.plan import json_text
from irc.plan.load import LoadedPlan, load_plan, pack, unpack
from irc.plan.save import check_target, make_plan, published, save_plan, sweep
from irc.plan.schema import from_json, to_json
from irc.plan.verify import verify_plan
from tests.plan.programs import build_plan, mlp, sharded


@pytest.fixture
def mlp_plan() -> LoadedPlan:
    plan = build_plan(mlp())
    kernels = {f"{kernel.name}.ll": f"; {kernel.name}\n" for kernel in plan.kernels}
    return make_plan(plan, ir={"00-capture.mlir": "builtin.module {}\n"}, kernels=kernels)


@pytest.fixture
def folder(mlp_plan: LoadedPlan, tmp_path: Path) -> Path:
    save_plan(tmp_path / "plan", mlp_plan, tensors={"up.weight": torch.ones(6, 9)})
    return tmp_path / "plan"


def test_what_is_saved_is_loaded(mlp_plan: LoadedPlan, folder: Path) -> None:
    loaded = load_plan(folder)
    assert (loaded.plan, loaded.texts, loaded.hash) == (
        mlp_plan.plan,
        mlp_plan.texts,
        mlp_plan.hash,
    )
    assert list(loaded.ir()) == ["ir/00-capture.mlir"]
    assert loaded.kernel_sources()["relu_5x9"] == "; relu_5x9\n"


def test_the_hash_does_not_depend_on_weights_or_place(mlp_plan: LoadedPlan, tmp_path: Path) -> None:
    one = save_plan(tmp_path / "one", mlp_plan, tensors={"up.weight": torch.ones(6, 9)})
    two = save_plan(tmp_path / "two", mlp_plan, tensors={"up.weight": torch.zeros(6, 9)})
    assert one == two == load_plan(tmp_path / "two").hash
    assert str(tmp_path).encode() not in b"".join([*mlp_plan.texts.values(), mlp_plan.manifest])
    other = make_plan(mlp_plan.plan, ir={"00-capture.mlir": "// other\n"})
    assert other.hash != one


def test_a_plan_packs_into_bytes(mlp_plan: LoadedPlan) -> None:
    data = pack(mlp_plan)
    assert unpack(data).hash == mlp_plan.hash
    for broken in (data[:-1], data + b"x", data[:5], b"", b"\xff" * 64):
        with pytest.raises(IrcError, match="plan-corrupt"):
            unpack(broken)


def test_an_existing_folder_is_kept(mlp_plan: LoadedPlan, folder: Path) -> None:
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(IrcError, match="output-exists"):
        save_plan(folder, mlp_plan)
    assert (folder / "manifest.json").read_bytes() == before
    other = make_plan(mlp_plan.plan)
    save_plan(folder, other, force=True)
    assert load_plan(folder).hash == other.hash
    assert not (folder / "ir").exists()
    assert [p.name for p in folder.parent.iterdir()] == ["plan"]


def test_force_does_not_delete_what_is_no_plan(mlp_plan: LoadedPlan, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("cat")
    with pytest.raises(IrcError, match="not folders of something else"):
        save_plan(tmp_path / "photos", mlp_plan, force=True)
    assert (tmp_path / "photos" / "cat.jpg").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(IrcError, match="output-exists"):
        check_target(tmp_path / "file", force=True)


def test_a_failure_leaves_nothing_behind(
    mlp_plan: LoadedPlan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "write_bytes", _disk_full)
    with pytest.raises(IrcError, match="No space left"):
        save_plan(folder.parent / "new", mlp_plan)
    with pytest.raises(IrcError, match="No space left"):
        save_plan(folder, make_plan(mlp_plan.plan), force=True)
    assert [p.name for p in folder.parent.iterdir()] == ["plan"]
    monkeypatch.undo()
    assert load_plan(folder).hash == mlp_plan.hash


def _disk_full(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_an_unsupported_weight_leaves_nothing_behind(mlp_plan: LoadedPlan, tmp_path: Path) -> None:
    with pytest.raises(IrcError, match="complex128"):
        save_plan(tmp_path / "plan", mlp_plan, tensors={"w": torch.ones(2, dtype=torch.complex128)})
    assert not list(tmp_path.iterdir())


def edit(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text()))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "plan cut off": (lambda f: edit(f / "plan.json", lambda t: t[:-20]), "plan.json has"),
    "a number changed": (
        lambda f: edit(f / "plan.json", lambda t: t.replace("5", "6")),
        "content of plan.json",
    ),
    "kernel changed": (lambda f: edit(f / "kernels/relu_5x9.ll", str.upper), "relu_5x9.ll"),
    "kernel missing": (lambda f: (f / "kernels/relu_5x9.ll").unlink(), "No such file"),
    "manifest cut off": (lambda f: edit(f / "manifest.json", lambda t: t[:-9]), "not valid JSON"),
    "manifest empty": (lambda f: edit(f / "manifest.json", lambda _: ""), "not valid JSON"),
    "manifest is a list": (lambda f: edit(f / "manifest.json", lambda _: "[]"), "expected an obj"),
    "manifest is binary": (lambda f: (f / "manifest.json").write_bytes(b"\xff\0"), "not valid"),
    "no format": (lambda f: edit(f / "manifest.json", lambda t: t.replace("format", "f")), "vers"),
    "other format": (
        lambda f: edit(f / "manifest.json", lambda t: t.replace('"format": 1', '"format": 99')),
        "plan-version",
    ),
    "path leads out": (
        lambda f: edit(f / "manifest.json", lambda t: t.replace("ir/00", "ir/../../00")),
        "not the name of a file",
    ),
    "absolute path": (
        lambda f: edit(f / "manifest.json", lambda t: t.replace("ir/00-capture.mlir", "/etc/x")),
        "not the name of a file",
    ),
    "a link": (lambda f: relink(f / "plan.json"), "cannot be read"),
    "a linked folder": (lambda f: relink(f / "ir"), "is a link"),
    "a pipe": (lambda f: pipe(f / "plan.json"), "not a regular file"),
    "equal keys": (
        lambda f: edit(f / "manifest.json", lambda t: t.replace("{", '{"mesh": "",', 1)),
        "given twice",
    ),
    "unknown key": (
        lambda f: edit(f / "manifest.json", lambda t: t.replace("{", '{"extra": 1,', 1)),
        "unknown key 'extra'",
    ),
    "other mesh": (
        lambda f: edit(f / "manifest.json", lambda t: t.replace('"mesh": ""', '"mesh": "a=2"')),
        "for mesh ''",
    ),
}


def relink(path: Path) -> None:
    path.rename(path.parent / "moved")
    path.symlink_to(path.parent / "moved")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_named(folder: Path, kind: str) -> None:
    damage, expected = DAMAGE[kind]
    damage(folder)
    with pytest.raises(IrcError, match=re.escape(expected)) as caught:
        load_plan(folder)
    assert caught.value.code in ("plan-corrupt", "plan-version")
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) < 15


def test_no_plan(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(IrcError, match="plan-missing"):
            load_plan(place)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested over"),
        ('{"a": NaN}', "NaN"),
        ('{"a": Infinity}', "Infinity"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
        ("{", "not valid JSON"),
        ('{"a": "\\ud800' + "[" * 40 + '"}', ""),
    ],
)
def test_json_limits(text: str, expected: str) -> None:
    if not expected:
        json_text.parse(text, "t")
        return
    with pytest.raises(IrcError, match=expected):
        json_text.parse(text, "t")


def changed(**edits: str) -> str:
    """The JSON of a sound plan with a value replaced, by the path ``buffers.3.offset``."""
    data = json.loads(to_json(build_plan(sharded())))
    for path, value in edits.items():
        *outer, last = path.split("__")
        place = data
        for step in outer:
            place = place[int(step) if step.isdigit() else step]
        place[int(last) if last.isdigit() else last] = json.loads(value)
    return json.dumps(data)


def indices(kind: str) -> int:
    actions = build_plan(sharded()).actions
    return next(i for i, action in enumerate(actions) if action.kind == kind)


KERNELS, START, WAIT = (indices(kind) for kind in ("kernels", "start", "wait"))
WRONG = [
    ({"mesh": '"data=0"'}, "the mesh cannot be read"),
    ({"mesh": "4"}, "expected str"),
    ({"buffers__0__dtype": '"f31"'}, "unknown dtype"),
    ({"buffers__0__shape": "[-8, 6]"}, "impossible shape"),
    ({"buffers__0__shape": "[1e3]"}, "expected int"),
    ({"buffers__0__shape": "[true]"}, "expected int"),
    ({"buffers__0__storage": '"disk"'}, "expected one of"),
    ({"buffers__3__offset": "1"}, "not a place for f32"),
    ({"buffers__3__offset": "4"}, "not aligned"),
    ({"buffers__3__offset": "6400000"}, "of"),
    ({"buffers__3__storage": '"alias"'}, "an alias of buffer None"),
    ({"buffers__1__placement__0__axis": '"rows"'}, "placed on axes"),
    ({"inputs": "[99]"}, "inputs name buffer 99"),
    ({"inputs": "[1]"}, "no input"),
    ({"inputs": "[]"}, "that nobody gives"),
    ({"arena_bytes": "64"}, "ends at"),
    ({f"actions__{KERNELS}__calls__0__kernel": "77"}, f"action {KERNELS}"),
    ({f"actions__{KERNELS}__calls__0__kernel": "-1"}, "is negative"),
    ({f"actions__{KERNELS}__calls__0__args__0": "99"}, f"action {KERNELS}"),
    ({f"actions__{KERNELS}__calls__0__args__0": "2"}, "takes 24 f32"),
    ({"kernels__0__args__0__elements": "1000"}, "takes 1000 f32"),
    ({f"actions__{START}__op": '"comm.send"'}, "no collective"),
    ({f"actions__{START}__attrs__axis": '"rows"'}, f"action {START}"),
    ({f"actions__{START}__attrs__fn": '"xor"'}, "reduces by sum"),
    ({f"actions__{WAIT}__start": "0"}, "not in flight"),
    ({f"actions__{WAIT}__kind": '"sleep"'}, "unknown kind"),
    ({"actions": "[]"}, "never written"),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "expected"), WRONG, ids=lambda v: str(v)[:40])
def test_an_edited_plan_is_verified(edits: dict[str, str], expected: str) -> None:
    with pytest.raises(IrcError, match="plan-corrupt") as caught:
        verify_plan(from_json(changed(**edits)))
    assert expected in caught.value.message + caught.value.where


def test_a_stale_buffer_is_found() -> None:
    """Put any two arena buffers of a plan in one place: alive together, they are refused."""
    plan = build_plan(mlp())
    arena = [i for i, b in enumerate(plan.buffers) if b.storage == "arena"]
    refused = 0
    for i in arena:
        for j in arena:
            text = json.loads(to_json(plan))
            text["buffers"][i]["offset"] = plan.buffers[j].offset
            text["arena_bytes"] *= 2
            try:
                verify_plan(from_json(json.dumps(text)))
            except IrcError as error:
                refused += 1
                assert "which holds no value now" in str(error) or "in use" in str(error)  # noqa: PT017
    assert 0 < refused < len(arena) ** 2


@pytest.mark.parametrize("replaces", [False, True])
def test_what_a_killed_process_has_left_is_swept(
    mlp_plan: LoadedPlan, tmp_path: Path, replaces: bool
) -> None:
    target = tmp_path / "plan"
    if replaces:
        save_plan(target, mlp_plan)
    code = (
        "import os, signal, sys; from pathlib import Path; from irc.plan.save import published\n"
        "with published(Path(sys.argv[1])) as place:\n"
        "    (place / 'half').write_text('written')\n"
        "    if sys.argv[2] == 'True':\n"
        "        Path.rename = lambda own, to, old=Path.rename: (\n"
        "            old(own, to), os.kill(os.getpid(), signal.SIGKILL))\n"
        "    else: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(target), str(replaces)], check=False)
    assert done.returncode == -signal.SIGKILL
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == (2 if replaces else 1)
    assert not target.exists()  # put aside, where it was to be replaced
    sweep(target)
    assert [path.name for path in tmp_path.iterdir()] == (["plan"] if replaces else [])
    if replaces:
        assert load_plan(target).hash == mlp_plan.hash
    save_plan(target, mlp_plan, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def test_what_a_process_writes_now_is_not_swept(tmp_path: Path) -> None:
    target = tmp_path / "plan"
    with published(target) as place:
        sweep(target)
        assert place.is_dir()


JSON: list[Any] = [
    {"a": [1, -2, 0.1, 1e300, -0.0, True, None, '\xe9\n"\\'], "b": {}, "c": [], "d": ()},
    {"a": {"b": [[], [{}], [[1]]]}, 1: "key", None: 2.5},
    {True: ["x"]},
    "text",
]


@pytest.mark.parametrize("value", JSON)
def test_json_is_printed_as_python_prints_it(value: Any) -> None:
    assert json_text.dump(value) == json.dumps(value, indent=1, allow_nan=False) + "\n"


@pytest.mark.parametrize(("value", "error"), [(float("nan"), ValueError), (object(), TypeError)])
def test_json_has_nothing_else(value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        json_text.dump({"a": [value]})
