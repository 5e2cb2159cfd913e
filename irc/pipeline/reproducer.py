"""What a crash inside irc leaves: a folder with the program on which a pass or a backend failed.

``irc replay FOLDER`` runs it again, ``irc reduce FOLDER`` makes it small, ``irc bug-report`` takes
it along. ``IRC_REPRODUCERS`` is ``off``, or a folder to have them in; by default they are in
``reproducers`` of the cache (:func:`irc.cluster.cache.cache_root`). The newest 8 are kept, and all
of the last ten minutes. Files:

* ``program.mlir``: the program at the entry of what failed. Literals of the program are in it;
  parameters and buffers, which are no part of the text, are not.
* ``reproducer.json``: what failed and how, versions of packages, and whether the program is exact.
* ``traceback.txt``.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.backends import BUILTIN
from irc.cluster.cache import private_folder
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.pipeline.apply import apply_passes
from irc.pipeline.failure import OF_PASSES, Failure, Stage, kernels_of
from irc.plugin import find_backend

VARIABLE = "IRC_REPRODUCERS"
OFF = "off"
KEPT = 8
YOUNG_S = 600.0
"""No folder is removed before it is so old."""
FORMAT = 1
PROGRAM, FACTS, TRACEBACK = "program.mlir", "reproducer.json", "traceback.txt"
PACKAGES = ("irc-compiler", "torch", "onnx", "xdsl", "numpy", "llvmlite")
NAME = re.compile(r"\d{8}-\d{6}-")
"""How names of folders begin: nothing else in a folder of the user's is ever removed."""


@dataclass(frozen=True)
class Reproducer:
    """A failure that can be made to happen again.

    Attributes:
        program: the text at the entry of what failed.
        stage: what failed on it.
        failure: how.
        is_exact: False where ``program`` is as the failed pass left it.
        versions: of packages, by name.
        traceback: of the failure.
    """

    program: str
    stage: Stage
    failure: Failure
    is_exact: bool
    versions: dict[str, str]
    traceback: str

    def replayed(self) -> Failure | None:
        """Run it again and return how it fails now; None where it does not.

        Raises:
            IrcError: the program or the passes cannot be read by this version of irc.
        """
        self.stage.parsed()
        return self.stage.failure(load(self.program, PROGRAM))


class Entry:
    """The program at the entry of some passes, kept until they have run.

    A copy costs one to three hundredths of what the passes take. Without it, all that is left of a
    crash is a program that a pass has changed by half.
    """

    def __init__(self, module: ModuleOp, passes: Sequence[ModulePass], *, compares: bool) -> None:
        self._changed, self._module = module, module.clone()
        self._passes, self._compares = passes, compares

    def __call__(self, error: Exception, number: int) -> None:
        """Leave a reproducer of a pass that failed, unless the fault is the user's.

        Args:
            error: what it raised; gets a note with the command that runs it again.
            number: of the pass among those that run.
        """
        if not is_crash(error):
            return
        try:
            stage = Stage(str(self._passes[number].spec()), compares=self._compares)
        except Exception:  # an option of a plug-in's pass that is no text
            error.add_note("no reproducer was left: the pass has options that cannot be written")
            return
        before = self._before(number)
        leave(error, before or self._changed, stage, is_exact=before is not None)

    def _before(self, number: int) -> ModuleOp | None:
        with suppress(Exception):  # a pass that is not the same twice: the program as it was left
            apply_passes(self._module, self._passes[:number])
            return self._module
        return None


def entry_of(
    module: ModuleOp, passes: Sequence[ModulePass], verify_each: str | None
) -> Entry | None:
    """Keep a program until passes have run; None where nothing is to be left of a crash."""
    if not passes or os.environ.get(VARIABLE) == OFF:
        return None
    return Entry(module, passes, compares=verify_each == "exec")


def is_crash(error: Exception) -> bool:
    """True for a fault of a pass or a backend, not of what the user wrote."""
    return not isinstance(error, IrcError) or error.code in OF_PASSES


def leave(error: Exception, module: ModuleOp, stage: Stage, *, is_exact: bool = True) -> None:
    """Write a reproducer, and note on the exception how to run it again.

    Never raises: where none can be written, the note says why.
    """
    if os.environ.get(VARIABLE) == OFF:
        return
    try:
        error.add_note(_write(error, module, stage, is_exact))
    except Exception as problem:  # the crash itself is what the user has to see
        why = problem.message if isinstance(problem, IrcError) else f"{problem}"
        error.add_note(f"no reproducer was left: {type(problem).__name__}: {why}")


def sources_of(module: ModuleOp, backend: str) -> dict[str, str]:
    """Return the sources of a module's kernels by file; a backend that crashes leaves a reproducer.

    Args:
        module: level task.
        backend: by name.

    Raises:
        IrcError: ``plugin-broken`` for a file that does not end as the backend says; what the
            backend raises.
    """
    try:
        emitter = find_backend(backend)
        sources = emitter.emit_plan_sources(kernels_of(module))
    except Exception as error:
        if is_crash(error):
            leave(error, module, Stage(backend=backend))
        if backend not in BUILTIN and not isinstance(error, IrcError):
            raise IrcError(
                "plugin-broken",
                f"backend '{backend}' of a plug-in fails on a kernel",
                because=f"{type(error).__name__}: {error}",
                help="mend the backend, or choose one of irc's: irc list backends",
            ) from error
        raise
    for name in sources:
        if not name.endswith(emitter.extension):
            raise IrcError(
                "plugin-broken",
                f"backend '{backend}' writes a file '{name}', and its files end in "
                f"'{emitter.extension}'",
                help="let the attribute extension of the backend say how all of its files end",
            )
    return sources


def notes_of(error: BaseException) -> list[str]:
    """Return what :func:`leave` noted on an exception, or on those that led to it."""
    notes: list[str] = []
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        notes += getattr(current, "__notes__", [])
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
    return [note for note in dict.fromkeys(notes) if "irc replay" in note or "reproducer" in note]


def read(folder: str | Path) -> Reproducer:
    """Read the folder of a reproducer.

    Raises:
        IrcError: ``reproducer-invalid`` for one that is none.
    """
    path = Path(folder)
    try:
        facts: Any = json.loads((path / FACTS).read_text(encoding="utf-8"))
        if facts["format"] != FORMAT:
            raise ValueError(f"its format is {facts['format']!r}, and this irc reads {FORMAT}")
        return Reproducer(
            (path / PROGRAM).read_text(encoding="utf-8"),
            Stage(f"{facts['passes']}", f"{facts['backend']}", facts["compares"] is True),
            Failure(**{key: str(facts["failure"][key]) for key in ("kind", "place", "message")}),
            facts["is_exact"] is True,
            {f"{name}": f"{number}" for name, number in facts["versions"].items()},
            (path / TRACEBACK).read_text(encoding="utf-8"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IrcError(
            "reproducer-invalid",
            f"'{folder}' is not the folder of a reproducer",
            because=f"{type(error).__name__}: {error}",
            help="give the folder that the error of the crash names",
        ) from error


def versions() -> dict[str, str]:
    """Return the versions of Python and of what irc is built on."""
    known = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            known[package] = "not installed"
    return known


def _write(error: Exception, module: ModuleOp, stage: Stage, is_exact: bool) -> str:
    reproducer = Reproducer(
        dump(module),
        stage,
        Failure.of(error),
        is_exact,
        versions(),
        "".join(traceback.format_exception(error)),
    )
    named = os.environ.get(VARIABLE)
    root = Path(named).resolve() if named else private_folder("reproducers")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    what = (stage.passes or f"emit-{stage.backend}").partition("{")[0]
    prefix = f"{time.strftime('%Y%m%d-%H%M%S')}-{what}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    write(reproducer, folder)
    with suppress(OSError):
        _keep_newest(root)
    now = reproducer.replayed()
    if now is not None and now.is_like(reproducer.failure):
        return f"irc replay '{folder}' fails in the same way"
    return f"reproducer: '{folder}' holds the program, and does not fail in the same way by itself"


def _keep_newest(root: Path) -> None:
    """Remove the oldest, none of which is of the last minutes: other ranks may have named those."""
    ages: dict[Path, float] = {}
    for path in root.iterdir():
        if NAME.match(path.name):
            with suppress(OSError):  # another process has removed it
                ages[path] = time.time() - path.stat().st_mtime
    for old in sorted(ages, key=lambda path: ages[path])[KEPT:]:
        if ages[old] > YOUNG_S:
            shutil.rmtree(old, ignore_errors=True)


def write(reproducer: Reproducer, folder: Path) -> None:
    """Write the files of a reproducer into a folder that is there.

    Raises:
        OSError: one cannot be written.
    """
    for name, text in files_of(reproducer).items():
        (folder / name).write_text(text, encoding="utf-8")


def files_of(reproducer: Reproducer) -> dict[str, str]:
    """Return the files of a reproducer, text by name."""
    facts = {
        "format": FORMAT,
        **asdict(reproducer.stage),
        "failure": asdict(reproducer.failure),
        "is_exact": reproducer.is_exact,
        "versions": reproducer.versions,
    }
    return {
        PROGRAM: reproducer.program,
        FACTS: json.dumps(facts, indent=2) + "\n",
        TRACEBACK: reproducer.traceback,
    }
