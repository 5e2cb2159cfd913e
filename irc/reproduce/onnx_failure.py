"""How an ONNX file fails: irc does not compile it, or computes other numbers than others do.

Each file is tried in a process that is started once and again where a file has ended it: kernels of
a program that is wrong may do anything.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import onnx

from irc.errors import IrcError
from irc.pipeline.failure import Failure

SERVE = "from irc.reproduce.onnx_failure import serve; serve()"
LIMIT_S = 120.0
"""What a file may take, compiled and run by both; a file that takes longer fails so."""
FREE_SIZE = 2
"""What stands for a named size of an input."""
DIFFERS = "differs"
TOLERANCE = {"bfloat16": 5e-2, "float16": 2e-2, "float32": 1e-3, "float64": 1e-6}
"""Largest errors, relative to the largest number of an output; of other dtypes 0."""


class Apart:
    """A process that says how files fail."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="irc-reduce-")
        self._process: subprocess.Popen[str] | None = None

    def failure(self, model: onnx.ModelProto) -> Failure | None:
        """Return how a model fails; None where it does not."""
        path = Path(self._folder.name) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        process, answer = self._process, ""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], LIMIT_S)[0]:
                self._end()
                return Failure("timeout", "", f"it takes more than {LIMIT_S:.0f} s")
            answer = process.stdout.readline()
        except BrokenPipeError:
            pass
        if not answer.endswith("\n"):  # none, or a part of one
            status = process.wait()
            self._end()
            return Failure("crash", f"status {status}", f"the process ends with status {status}")
        facts = json.loads(answer)
        return None if facts is None else Failure(**facts)

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()


def serve() -> None:
    """Answer with the failure of each file whose path comes by standard input, a line each."""
    answers: IO[str] = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        failure = failure_of(Path(line.rstrip("\n")))
        facts = None if failure is None else vars(failure)
        print(json.dumps(facts), file=answers, flush=True)


def failure_of(path: Path) -> Failure | None:
    """Compile a file, run it on drawn inputs, and compare; None where all is well.

    A named size is 2. Where neither onnxruntime nor onnx's reference runs the model, or irc says of
    its inputs what they say too, there is nothing to compare with.
    """
    from irc.onnx import InferenceSession

    feeds: dict[str, Any] | None = None
    try:
        session = InferenceSession(str(path))
        feeds = drawn(session.get_inputs())
        results = session.run(None, feeds)
    except Exception as error:  # whichever it is, is what was asked for
        failure: Failure | None = Failure.of(error)
        results = []
    else:
        failure = None
    if failure is not None and failure.kind != "input-mismatch":
        return failure
    expected = None if feeds is None else reference(path, feeds)
    if expected is None:
        return None
    if failure is not None:
        return failure
    for index, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        if problem := difference(ours, theirs):
            return Failure(DIFFERS, DIFFERS, f"output {index}: {problem}")
    return None


def drawn(inputs: Any) -> dict[str, Any]:
    """Return arrays for the inputs of a session, always the same: normal, or 0 and 1."""
    generator = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for each in inputs:
        shape = [size if isinstance(size, int) else FREE_SIZE for size in each.shape or ()]
        kind = str(each.type).removeprefix("tensor(").removesuffix(")")
        kind = {"float": "float32", "double": "float64"}.get(kind, kind)
        if kind.startswith("float"):
            feeds[each.name] = generator.standard_normal(shape).astype(kind)
        elif kind.startswith(("int", "uint", "bool")):
            feeds[each.name] = generator.integers(0, 2, shape).astype(kind)
        else:
            raise IrcError("input-mismatch", f"inputs of type '{each.type}' are not drawn")
    return feeds


def reference(path: Path, feeds: dict[str, Any]) -> list[Any] | None:
    """Return what onnxruntime computes, else onnx's reference; None where neither does."""
    try:
        import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

        runtime: Any = onnxruntime  # its types are unknown in part
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        runs = runtime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        return list(runs.run(None, feeds))
    except Exception:  # not installed, or it has its own limits
        pass
    try:
        from onnx.reference import ReferenceEvaluator

        evaluator: Any = ReferenceEvaluator(str(path))
        return list(evaluator.run(None, feeds))
    except Exception:  # it has no such op, or the model is wrong
        return None


def difference(ours: Any, theirs: Any) -> str:
    """Say how two outputs differ; empty where they do not.

    >>> difference(np.float32([1, 2]), np.float32([1, 2.0001])), difference([1], [1, 2])
    ('', 'shape (1,), not (2,)')
    """
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.dtype != theirs.dtype:
        return f"dtype {ours.dtype}, not {theirs.dtype}"
    if ours.shape != theirs.shape:
        return f"shape {ours.shape}, not {theirs.shape}"
    tolerance = TOLERANCE.get(f"{theirs.dtype}", 0.0)
    if not tolerance:
        count = int((ours != theirs).sum())
        return f"{count} of {theirs.size} elements differ" if count else ""
    wide, other = ours.astype("float64"), theirs.astype("float64")
    known = np.isfinite(other)
    if not np.array_equal(wide[~known], other[~known], equal_nan=True):
        return "one is not finite where the other is, or otherwise"
    if not np.isfinite(wide[known]).all():
        return "one is not finite where the other is"
    if not known.any():
        return ""
    error = np.abs(wide[known] - other[known]).max() / max(np.abs(other[known]).max(), 1e-30)
    return f"relative error {error:.1e}" if error > tolerance else ""
