"""Folders of plans of several programs: read as they were written, or refused by name."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import irc
from irc.calls.step_plan import captured_step
from irc.cli import main
from irc.dialects.text import dump
from irc.errors import IrcError
from irc.pipeline import Options
from irc.plan.load import load_plan
from irc.plan.parts import PartsPlan, with_files
from irc.plan.parts_files import is_parts, load_parts, save_parts
from irc.plan.parts_packing import pack_parts, unpack_parts
from irc.plan.training import forward_text, recipe_of_plan, training_files
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.sharding.mesh import parse_mesh
from irc.training.recipe import Recipe
from tests.programs.models import GPT, MICRO_BATCHES, model_and_batch


def _planned() -> tuple[PartsPlan, dict[str, torch.Tensor]]:
    _, batch = model_and_batch("tied", torch.float32)
    recipe = Recipe(micro_batches=MICRO_BATCHES)
    captured, split = captured_step(GPT(2, 16, tied=True), None, recipe, batch, {})
    recipe = Recipe(micro_batches=MICRO_BATCHES, split=split)
    forward = dump(captured.program.module)
    schedule = schedule_for("1f1b", 2, MICRO_BATCHES)
    plan = make_parts_plan(captured.program, recipe, Options(mesh=parse_mesh("pipe=2")), schedule)
    return with_files(plan, training_files(recipe, forward)), captured.program.tensors


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[PartsPlan, Path]:
    plan, tensors = _planned()
    folder = tmp_path_factory.mktemp("parts") / "plan"
    save_parts(folder, plan, tensors)
    return plan, folder


@pytest.fixture
def folder(saved: tuple[PartsPlan, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[1], tmp_path / "plan"))


def test_what_is_saved_is_loaded(saved: tuple[PartsPlan, Path]) -> None:
    plan, folder = saved
    loaded = load_parts(folder)
    assert is_parts(folder)
    assert (loaded.facts, loaded.schedule_text, loaded.hash) == (
        plan.facts,
        plan.schedule_text,
        plan.hash,
    )
    assert [{k: f.hash for k, f in part.items()} for part in loaded.parts] == [
        {k: f.hash for k, f in part.items()} for part in plan.parts
    ]
    recipe = recipe_of_plan(loaded)
    assert recipe is not None
    assert (recipe.micro_batches, recipe.split) == (MICRO_BATCHES, ("ids", "targets"))
    assert forward_text(loaded) == forward_text(plan)
    # Written here, so this user's.
    assert loaded.code == "trusted"
    assert load_plan(folder / "parts/0/F").hash == plan.parts[0]["F"].hash


def test_each_weight_is_there_once(saved: tuple[PartsPlan, Path]) -> None:
    """A tied weight, which both stages read, too; and nothing is stored for accumulators."""
    plan, folder = saved
    with (folder / "weights.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert "tok.weight" in plan.facts.shared
    assert {name for name in header if name.startswith(("tok", "head"))} == {"tok.weight"}
    assert not {name for name in header if "accumulat" in name or "optimizer" in name}
    assert main(["check", str(folder), "--weights"]) == 0


def test_a_plan_packs_into_bytes(saved: tuple[PartsPlan, Path]) -> None:
    assert unpack_parts(pack_parts(saved[0])).hash == saved[0].hash


def test_force_replaces_a_plan_only(saved: tuple[PartsPlan, Path], folder: Path) -> None:
    plan, tensors = saved[0], dict[str, torch.Tensor]()
    with pytest.raises(IrcError, match="output-exists"):
        save_parts(folder, plan, tensors)
    save_parts(folder, plan, tensors, force=True)
    other = folder.parent / "other"
    other.mkdir()
    (other / "notes").write_text("mine")
    with pytest.raises(IrcError, match="output-exists"):
        save_parts(other, plan, tensors, force=True)


def _facts(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change parts.json itself, which no digest is about."""

    def apply(folder: Path) -> None:
        path = folder / "parts.json"
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data, indent=1) + "\n")

    return apply


def _schedule(change: Callable[[str], str]) -> Callable[[Path], None]:
    """Change the schedule, and what parts.json says of it."""

    def apply(folder: Path) -> None:
        text = change((folder / "schedule.txt").read_text())
        (folder / "schedule.txt").write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        _facts(lambda d: d.update(schedule=digest))(folder)

    return apply


def _append(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        with (folder / name).open("a") as file:
            file.write(" ")

    return apply


def _swap(folder: Path) -> None:
    """A function of one part in the place of another part's."""
    shutil.rmtree(folder / "parts/0/step")
    shutil.copytree(folder / "parts/1/step", folder / "parts/0/step")


def _other_kind(folder: Path) -> None:
    """One function in the place of another, which parts.json says too."""
    shutil.rmtree(folder / "parts/0/F")
    shutil.copytree(folder / "parts/1/F", folder / "parts/0/F")
    _facts(lambda d: d["parts"][0].update(F=d["parts"][1]["F"]))(folder)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "schedule": (_append("schedule.txt"), "schedule.txt"),
    "recipe": (_append("training/recipe.json"), "training/recipe.json"),
    "forward": (_append("training/forward.mlir"), "training/forward.mlir"),
    "plan": (_append("parts/1/B/plan.json"), "plan.json"),
    "swapped": (_swap, "part 0"),
    "kind": (_other_kind, "part 0"),
    "json": (lambda f: (f / "parts.json").write_text("{"), "JSON"),
    "list": (lambda f: (f / "parts.json").write_text("[]"), "object"),
    "spaces": (_append("parts.json"), "written"),
    "key": (_facts(lambda d: d.update(more=1)), "more"),
    "missing": (_facts(lambda d: d.pop("channels")), "channels"),
    "type": (_facts(lambda d: d.update(mesh=3)), "mesh"),
    "mesh": (_facts(lambda d: d.update(mesh="pipe")), "pipe"),
    "ranks": (_facts(lambda d: d.update(mesh="pipe=3")), "ranks"),
    "inner": (_facts(lambda d: d.update(mesh="pipe=2,data=2")), "data"),
    "empty": (_facts(lambda d: d.update(parts=[])), "parts"),
    "loss": (_facts(lambda d: d.update(loss="n1")), "n1"),
    "cut": (_facts(lambda d: d.update(cut=["x"])), "cut"),
    "input": (_facts(lambda d: d.update(inputs=["targets", "lr"], cut=[])), "ids"),
    "outside": (_facts(lambda d: d["channels"][0].update(consumer=7)), "cut0"),
    "register": (_facts(lambda d: d["channels"][0].update(register="saved99")), "saved99"),
    "shape": (_facts(lambda d: d["channels"][0].update(shape=[2, 12, 99])), "cut0"),
    "rank": (_facts(lambda d: d["channels"][0].update(shape=[2])), "cut0"),
    "dtype": (_facts(lambda d: d["channels"][0].update(dtype="f64")), "cut0"),
    "shared": (_facts(lambda d: d["shared"].update({"tok.weight": [0, 9]})), "tok.weight"),
    "escape": (_facts(lambda d: d["parts"][0].update({"../x": "0"})), "x"),
    "file": (_facts(lambda d: d["files"].update({"../secret": "0"})), "secret"),
    "lost": (lambda f: shutil.rmtree(f / "parts/1/step"), "parts/1/step"),
    "once": (_schedule(lambda t: t.replace("0B3", "")), "0"),
    "twice": (_schedule(lambda t: t.replace("0F0", "0F0 0F0")), "0F0"),
    "stages": (_schedule(lambda t: t.replace("1F", "2F").replace("1B", "2B")), "stage"),
    "words": (_schedule(lambda t: t + "rank x: hello"), "line"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_corruption_is_named(folder: Path, name: str) -> None:
    spoil, said = FAULTS[name]
    spoil(folder)
    with pytest.raises(IrcError) as caught:
        load_parts(folder)
    error = caught.value
    assert error.code in ("plan-corrupt", "plan-missing")
    assert said in error.render()


def test_a_later_format_is_refused(folder: Path) -> None:
    _facts(lambda d: d.update(format=99))(folder)
    with pytest.raises(IrcError, match="plan-version"):
        load_parts(folder)


def test_weights_are_held_against_their_digests(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "weights.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x01\x02\x03\x04")
    assert main(["check", str(folder), "--weights"]) != 0
    assert "plan-corrupt" in capsys.readouterr().err


def test_a_stranger_is_asked_for_trust(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels are written again; ``irc trust`` notes the whole folder by one digest."""
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("irc.plan.built._here", set[str]())
    assert load_parts(folder).code == "unknown"
    assert load_parts(folder, trust=True).parts[0]["F"].code == "trusted"
    assert main(["trust", str(folder)]) == 0
    assert load_parts(folder).parts[1]["B"].code == "trusted"
    _append("training/recipe.json")(folder)
    with pytest.raises(IrcError, match="plan-corrupt"):
        load_parts(folder)


def test_a_signature_covers_the_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    key = tmp_path / "key.pem"
    assert main(["sign", "--new-key", str(key)]) == 0
    assert main(["sign", str(folder), "--key", str(key)]) == 0
    public = json.loads((folder / "signature.json").read_text())["key"]
    (tmp_path / "keys").write_text(f"ed25519:{public}\n")
    (tmp_path / "keys").chmod(0o600)
    monkeypatch.setenv("IRC_TRUSTED_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("irc.plan.built._here", set[str]())
    assert load_parts(folder).code == "trusted"
    _facts(lambda d: d.update(irc="0"))(folder)
    with pytest.raises(IrcError, match="signature-invalid"):
        load_parts(folder)


def test_what_takes_one_program_says_what_takes_several(folder: Path) -> None:
    with pytest.raises(IrcError, match="several programs") as caught:
        irc.load(folder)
    assert "irc run" in caught.value.render()
