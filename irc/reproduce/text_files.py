"""Reducing a reproducer, or a program in text form with the passes that fail on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.pipeline.failure import Stage
from irc.pipeline.reproducer import FACTS, read, write
from irc.reproduce.programs import ops_of, smallest_program
from irc.reproduce.small import Small


def reduce_folder(path: Path, out: Path | None, seconds: float) -> Small:
    """Reduce a reproducer, and write another.

    Args:
        path: its folder.
        out: the folder to write, which must not be there; by default in the working directory,
            as those that crashes leave are removed in time.
        seconds: that the search may take.

    Raises:
        IrcError: ``reproducer-invalid``, ``reduce-nothing``, ``output-write``.
    """
    known = read(path)
    small, text = _reduced(known.program, f"{path}", known.stage, seconds)
    if not small.failure.is_like(known.failure):
        raise IrcError(
            "reduce-nothing", f"{known.stage} fails in another way on '{path}': {small.failure}"
        )
    out = Path(f"{path.name}.small") if out is None else out
    reproducer = replace(known, program=text, failure=small.failure, is_exact=True)
    try:
        out.mkdir(parents=True)
        write(reproducer, out)
    except OSError as error:
        raise IrcError("output-write", f"cannot write '{out}': {error.strerror}") from error
    return replace(small, file=out, again=f"irc replay {out}")


def reduce_program(
    path: Path, passes: str, out: Path | None, seconds: float, *, compares: bool
) -> Small:
    """Reduce a program on which passes fail, and write it as text.

    Args:
        path: the program.
        passes: as ``irc opt -p`` takes them.
        out: the file to write; beside ``path`` by default.
        seconds: that the search may take.
        compares: other numbers behind a pass are a failure, too.

    Raises:
        IrcError: ``file-missing``, ``reduce-nothing``, ``output-write``, and as ``irc opt``.
    """
    text = _read(path)
    if not passes:
        raise IrcError("option-value", "which passes fail?", help=f"irc reduce {path} -p PASSES")
    stage = Stage(passes, compares=compares)
    small, reduced = _reduced(text, f"{path}", stage, seconds)
    out = path.with_name(f"{path.name.removesuffix('.mlir')}.small.mlir") if out is None else out
    try:
        out.write_text(f"// {small.failure.kind} of {stage}\n{reduced}", encoding="utf-8")
    except OSError as error:
        raise IrcError("output-write", f"cannot write '{out}': {error.strerror}") from error
    verify = "exec" if compares else "ir"
    return replace(small, file=out, again=f"irc opt {out} -p '{passes}' --verify-each={verify}")


def _reduced(text: str, name: str, stage: Stage, seconds: float) -> tuple[Small, str]:
    stage.parsed()
    module = load(text, name)
    failure = stage.failure(module.clone())
    if failure is None:
        raise IrcError(
            "reduce-nothing",
            f"{stage} does not fail on '{name}'",
            help="" if stage.compares else "--differs runs it before and after each pass, too",
        )
    smallest = smallest_program(module, stage, failure, seconds)
    last = stage.failure(smallest.subject.clone()) or failure
    before, after = ops_of(module), ops_of(smallest.subject)
    small = Small(Path(), last, before, after, smallest.tries, smallest.is_minimal, "")
    return small, dump(smallest.subject)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise IrcError("ir-syntax", "the file is not UTF-8 text", f"{path}", f"{error}") from error
    except OSError as error:
        raise IrcError(
            "file-missing",
            f"cannot read '{path}': {error.strerror}",
            help=f"give a program, an ONNX file, or the folder of a reproducer ({FACTS} is in it)",
        ) from error
