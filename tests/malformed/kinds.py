"""What is spoiled: models, plans, clusters and IR, made from real ones, and how each is tried.

A plan's files are spoiled with and without the digests of its manifest made again: with them, only
what irc knows of a plan is left to refuse it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from irc.cli import main
from irc.cluster.load import example
from tests.malformed.models import MODELS
from tests.malformed.mutations import MUTATIONS, Mutation
from tests.malformed.nodes import NODE_MUTATIONS
from tests.malformed.texts import spoiled_bytes, spoiled_json, spoiled_lines, spoiled_words
from tests.malformed.trial import Outcome, try_command, try_file

Trial: TypeAlias = Callable[[int, Path], Outcome]
"""Makes the file of a seed in an empty folder, and tries it."""

TEXTS = (spoiled_words, spoiled_words, spoiled_lines, spoiled_bytes)
MAX_MODEL_BYTES = 60_000
"""Larger models take seconds to compile where nothing is wrong with them."""
PACKAGES = ("onnx_asr", "silero_vad", "magika", "rapidocr")

GRAPH = """name = "wires"
[device]
name = "A6000"
peak_tflops = { f32 = 38.0 }
memory_gb = 48
memory_gb_per_s = 600
[graph]
launch_us = 7
[[edge]]
between = [0, "switch"]
gb_per_s = 20
latency_us = 1
[[edge]]
between = [1, "switch"]
gb_per_s = 20
latency_us = 1
"""


class Bases:
    """The real files that others are made of: written once, in a folder of their own."""

    def __init__(self) -> None:
        self._room = Path(tempfile.mkdtemp(prefix="malformed-bases-"))
        self.clusters = {"levels": example().encode(), "graph": GRAPH.encode()}
        self.plans: dict[str, Path] = {}
        ways = {
            "perceptron": [], "convolutional": [], "quantised": [], "functional": [],
            "mesh": ["--mesh", "data=2"],
        }  # fmt: skip
        for name, more in ways.items():
            model = self._room / f"{name}.onnx"
            model.write_bytes(MODELS.get(name, MODELS["perceptron"])().SerializeToString())
            self.plans[name] = self._room / name
            with contextlib.redirect_stdout(io.StringIO()):
                assert main(["compile", str(model), "-o", str(self.plans[name]), *more]) == 0
        levels = sorted(path for plan in self.plans.values() for path in plan.glob("ir/*.mlir"))
        self.texts = {text: path.name for path in levels if (text := path.read_bytes())}
        self.runs = [name for name in self.plans if name != "mesh"]

    @cached_property
    def models(self) -> dict[str, bytes]:
        """Models by name."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dict(_models())

    @property
    def warming(self) -> list[list[str]]:
        """Command lines that trials will give, on what is well formed."""
        plan = self.plans["perceptron"]
        text = min(plan.glob("ir/*.mlir"))
        cluster = self._room / "cluster.toml"
        cluster.write_bytes(self.clusters["levels"])
        return [["opt", str(text)], ["run", str(plan)], ["cluster", "show", str(cluster)]]

    def clear(self) -> None:
        """Remove them."""
        shutil.rmtree(self._room)

    def onnx(self, seed: int, room: Path) -> Outcome:
        """Compile a model."""
        chance = random.Random(seed)
        base = chance.choice(list(MODELS) if seed % 2 else list(self.models))
        changes: Mapping[str, Mutation] = MUTATIONS if base in MODELS else NODE_MUTATIONS
        change = chance.choice(list(changes))
        model = onnx.ModelProto()
        model.ParseFromString(self.models[base])
        return try_file(f"{seed} {base} {change}", changes[change](model, chance), room)

    def plan(self, seed: int, room: Path) -> Outcome:
        """Run a plan of which one file is spoiled."""
        chance = random.Random(seed)
        name = chance.choice(self.runs)
        folder = room / "model" / "plan"
        shutil.copytree(self.plans[name], folder)
        target = chance.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
        if chance.random() < 0.6:
            target = chance.choice(sorted(folder.rglob("*.json")))
        change: Any = spoiled_bytes
        if target.suffix == ".json" and chance.random() < 0.8:
            change = spoiled_json
        elif target.suffix in (".mlir", ".ll") and chance.random() < 0.8:
            change = chance.choice(TEXTS)
        target.write_bytes(change(target.read_bytes() or b"\0", chance))
        again = chance.random() < 0.7 and "manifest" not in target.name
        if again:
            redo_digests(folder)
        label = f"{seed} {name} {target.relative_to(folder)} {change.__name__} {again}"
        return try_command(label, ["run", "plan"], room)

    def cluster(self, seed: int, room: Path) -> Outcome:
        """Show a cluster."""
        chance = random.Random(seed)
        name, change = chance.choice(list(self.clusters)), chance.choice(TEXTS)
        (room / "model").mkdir()
        (room / "model" / "c.toml").write_bytes(change(self.clusters[name], chance))
        return try_command(f"{seed} {name} {change.__name__}", ["cluster", "show", "c.toml"], room)

    def ir(self, seed: int, room: Path) -> Outcome:
        """Parse, verify and print a text of any level."""
        chance = random.Random(seed)
        text, change = chance.choice(list(self.texts)), chance.choice(TEXTS)
        (room / "model").mkdir()
        (room / "model" / "t.mlir").write_bytes(change(text, chance))
        words = ["opt", "t.mlir"]
        return try_command(f"{seed} {self.texts[text]} {change.__name__}", words, room)

    @property
    def trials(self) -> Mapping[str, Trial]:
        """How each kind is tried."""
        return {"onnx": self.onnx, "plan": self.plan, "cluster": self.cluster, "ir": self.ir}


def redo_digests(folder: Path) -> None:
    """Write sizes and digests of a plan's files, as they are now, into its manifests."""
    for manifest in sorted(folder.rglob("manifest.json"), reverse=True):
        listed = json.loads(manifest.read_bytes())
        for name, entry in listed["files"].items():
            content = (manifest.parent / name).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            whole = isinstance(entry["sha256"], str)
            entry.update(bytes=len(content), sha256=digest if whole else [digest])
        manifest.write_text(json.dumps(listed, indent=1))


def _models() -> Iterator[tuple[str, bytes]]:
    for name, make in MODELS.items():
        yield name, make().SerializeToString()
    # What exporters of three frameworks wrote, and a model for each op, of onnx itself.
    for package in PACKAGES:
        if (spec := find_spec(package)) is None or spec.origin is None:
            continue
        for path in sorted(Path(spec.origin).parent.rglob("*.onnx")):
            if path.stat().st_size <= MAX_MODEL_BYTES:
                yield f"{package}/{path.name}", path.read_bytes()
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(None):
        if case.model is not None and case.model.ByteSize() <= MAX_MODEL_BYTES:
            yield case.name, case.model.SerializeToString()
