"""Many programs on many targets: counts, and failures made small."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.fuzz import view_scenes, ways
from tests.fuzz.check import Failure, check_with
from tests.fuzz.generator import generate
from tests.fuzz.program import Program
from tests.fuzz.scene_motifs import scene as scene_of
from tests.fuzz.scenes import Scene
from tests.fuzz.shrink import shrunk
from tests.fuzz.targets import TARGETS, Target, plans_shared

VIEWS = "views"
"""Scenes of views alone, each in the way whose turn it is."""

SIMPLE = ("triton", "cuda")
"""Targets that interpret kernels: small sizes, none of them empty."""


@dataclass(frozen=True)
class Finding:
    """A failure, and the smallest program that shows it."""

    seed: int
    target: str
    kind: str
    text: str


class Session:
    """Runs the programs of seeds.

    Args:
        names: the targets.
        shrink: whether failures are made small.
    """

    def __init__(self, names: Iterable[str], *, shrink: bool = True) -> None:
        self.names = list(names)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.findings: list[Finding] = []
        self.elements = 0
        self._bounded = 0
        self._shrink = shrink
        self.ways = [name for name in self.names if name == "way" or name in ways.WAYS]
        others = [name for name in self.names if name not in (*self.ways, VIEWS)]
        self._targets = {name: target_of(name) for name in others}

    @property
    def claimed(self) -> float:
        """The part of all results about which the reference claims something."""
        return self._bounded / self.elements if self.elements else 1.0

    def run(self, seeds: Iterable[int]) -> Iterator[Finding]:
        """Run programs; yield what fails."""
        seeds = list(seeds)
        for simple in (False, True):
            names = [name for name in self._targets if (name in SIMPLE) == simple]
            if not names:
                continue
            programs = [generate(seed, simple=simple) for seed in seeds]
            for name in names:
                target = self._targets[name]
                if name == "cuda":
                    target.prepare(programs)  # type: ignore[attr-defined]
            for program in programs:
                self._count(program)
                with plans_shared():
                    failures = {n: check_with(program, self._targets[n]) for n in names}
                for name, failure in failures.items():
                    self.counts[name, failure.kind if failure else "ok"] += 1
                    if failure is not None:
                        self.findings.append(self._shown(program, name, failure))
                        yield self.findings[-1]
        for seed in seeds if self.ways else ():
            yield from self._scene(seed)
        for seed in seeds if VIEWS in self.names else ():
            yield from self._views(seed)

    def _views(self, seed: int) -> Iterator[Finding]:
        way = list(ways.WAYS)[seed % len(ways.WAYS)]
        yield from self._seen(
            view_scenes.view_scene(seed), VIEWS, way, lambda x: view_scenes.check(x, way)
        )

    def _scene(self, seed: int) -> Iterator[Finding]:
        scene = scene_of(seed)
        for name in self.ways:
            number, way = ways.at(name, seed)
            check = partial(ways.check, name=way, features=ways.SETS[number])
            yield from self._seen(scene, name, way, check)

    def _seen(
        self, scene: Scene, name: str, way: str, check: Callable[[Scene], Failure | None]
    ) -> Iterator[Finding]:
        failure = check(scene)
        self.counts[name, failure.kind if failure else "ok"] += 1
        if failure is None:
            return

        def fails(smaller: Scene) -> bool:
            outcome = check(smaller)
            return outcome is not None and outcome.kind == failure.kind

        small = ways.shrunk(scene, fails) if self._shrink else scene
        last = check(small) or failure
        text = f"--- seed {scene.seed} on {way}: {last.kind}: {last.text}\n{small.text}"
        self.findings.append(Finding(scene.seed, way, last.kind, text))
        yield self.findings[-1]

    def _count(self, program: Program) -> None:
        for value in program.reference(program.draw()):
            self.elements += value.value.numel()
            self._bounded += int((~value.unknown).sum())

    def _shown(self, program: Program, name: str, failure: Failure) -> Finding:
        target = self._targets[name]

        def fails(smaller: Program) -> bool:
            outcome = check_with(smaller, target)
            return outcome is not None and _cause(outcome) == _cause(failure)

        small = shrunk(program, fails) if self._shrink else program
        last = check_with(small, target) or failure
        text = f"--- seed {program.seed} on {name}: {last.kind}: {last.text}\n{small.text}"
        return Finding(program.seed, name, last.kind, text)


def _cause(failure: Failure) -> tuple[str, str]:
    """Return what two failures share that have one cause: a crash's message up to its numbers."""
    shown = failure.text if failure.kind in ("crash", "refused") else ""
    return failure.kind, re.split(r"[\d\['\"]", shown)[0]


def target_of(name: str) -> Target:
    """Return what runs a program on a target."""
    if name == "triton":
        from tests.fuzz import triton

        return triton.run
    if name == "cuda":
        from tests.fuzz.cuda import Shim

        return Shim()
    return TARGETS[name]
