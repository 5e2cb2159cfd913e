"""Inductor's test file, loaded with another compiler in Inductor's place."""

# pyright: basic
from __future__ import annotations

import importlib
import importlib.util
import io
import os
import sys
import traceback
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

# Read when Inductor is imported: it would start processes that compile nothing here.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch
import torch._dynamo
import torch._inductor.compile_fx as inductor

from irc.torch_backend import compile_fx

FILES = {False: "test_torchinductor", True: "test_torchinductor_dynamic_shapes"}
CLASSES = {False: "CpuTests", True: "DynamicShapesCpuTests"}

Compiler = Callable[..., Any]


def through_irc(gm: Any, inputs: Sequence[Any], *_: Any, **__: Any) -> Any:
    """Compile a graph with irc; what configures Inductor means nothing to it."""
    return compile_fx(gm, inputs)


def as_it_is(gm: Any, inputs: Sequence[Any], *_: Any, **__: Any) -> Any:
    """Run a graph as Dynamo captured it: the control."""
    return gm.forward


class _InPlaceOfInductor:
    """What the tests call as ``compile_fx``, however they came by it."""

    def __init__(self) -> None:
        self.compiler: Compiler = through_irc

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiler(*args, **kwargs)


IN_PLACE = _InPlaceOfInductor()


def load(folder: Path, *, dynamic: bool) -> type[unittest.TestCase]:
    """Return the class of CPU tests of a source tree.

    Raises:
        SystemExit: where the tree has no such file.
    """
    tests = folder / "test"
    if not (tests / "inductor" / f"{FILES[dynamic]}.py").is_file():
        raise SystemExit(f"{tests / 'inductor'} has no {FILES[dynamic]}.py")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.path.insert(0, str(tests))
    _add_missing_names(tests / "inductor" / "test_torchinductor.py")
    inductor.compile_fx = IN_PLACE  # type: ignore[assignment]
    module = importlib.import_module(f"inductor.{FILES[dynamic]}")
    # Most tests count kernels somewhere between two comparisons of numbers: these are to go on.
    common: Any = importlib.import_module("inductor.test_torchinductor")
    common.assertGeneratedKernelCountEqual = lambda *_: None
    suite = getattr(module, CLASSES[dynamic])
    suite.assertEqual = _equal_to_rounding(suite.assertEqual)
    return suite


def _equal_to_rounding(equal: Callable[..., None]) -> Callable[..., None]:
    """Allow float32 results a part in a million of the largest one.

    The suite allows 1e-5 whatever the numbers are, as Inductor calls the library that eager calls.
    Sums in another order differ by that of thousands of terms.
    """

    def equal_to_rounding(
        self: unittest.TestCase, x: Any, y: Any, *args: Any, atol: Any = None, rtol: Any = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        floats = [
            leaf.detach().abs()
            for leaf in torch.utils._pytree.tree_leaves(y)
            if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32 and leaf.numel()
        ]
        finite = [leaf[leaf.isfinite()].max().item() for leaf in floats if leaf.isfinite().any()]
        if (largest := max(finite, default=0.0)) > 10:
            atol = max(1e-5 if atol is None else atol, 1e-6 * largest)
            rtol = 1.3e-6 if rtol is None else rtol
        equal(self, x, y, *args, atol=atol, rtol=rtol, **kwargs)

    return equal_to_rounding


def _add_missing_names(path: Path) -> None:
    """Let a file import what this PyTorch no longer has: a test that calls it then fails."""
    import ast

    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
            continue
        try:
            module = importlib.import_module(node.module)
        except ImportError:
            module = sys.modules[node.module] = ModuleType(node.module)
        for alias in node.names:
            if not hasattr(module, alias.name) and not _is_module(node.module, alias.name):
                setattr(module, alias.name, _Missing(alias.name))


def _is_module(package: str, name: str) -> bool:
    try:
        return importlib.util.find_spec(f"{package}.{name}") is not None
    except ModuleNotFoundError:
        return False


class _Missing:
    """Stands for a name that this PyTorch lacks; as a decorator it changes nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **_: Any) -> Any:
        if len(args) == 1 and callable(args[0]):
            return args[0]
        raise unittest.SkipTest(f"this PyTorch has no {self.name}")


def test_names(suite: type[unittest.TestCase]) -> list[str]:
    """Return the names of a class's tests."""
    return unittest.TestLoader().getTestCaseNames(suite)  # type: ignore[return-value]


def run_test(suite: type[unittest.TestCase], name: str) -> Iterator[dict[str, str]]:
    """Run a test with irc, and with the control where that fails.

    Yields:
        verdict (``ok``, ``skipped``, ``control`` or ``failing``), reason and line of the test file.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch logs each error that a test provokes
    verdict, reason, line = _attempt(suite, name, through_irc)
    if verdict == "failing":
        yield {
            "verdict": verdict,
            "reason": f"{reason} (and the control does not end)",
            "line": line,
        }
        wrong, control_reason, control_line = _attempt(suite, name, as_it_is)
        if wrong == "failing" and control_line == line:
            verdict, reason = "control", control_reason
    yield {"verdict": verdict, "reason": reason, "line": line}


def _attempt(suite: type[unittest.TestCase], name: str, compiler: Compiler) -> tuple[str, str, str]:
    IN_PLACE.compiler = compiler
    torch._dynamo.reset()
    outcome = unittest.TextTestRunner(stream=io.StringIO()).run(
        unittest.TestSuite([_Kept(suite, name).test])
    )
    if outcome.skipped:
        return "skipped", outcome.skipped[0][1], ""
    if outcome.unexpectedSuccesses or (not outcome.failures and not outcome.errors):
        return "ok", "", ""
    error = _Kept.last
    assert error is not None
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if "test_torchinductor" in f.filename
    ]
    line = f"{frames[-1].name}:{frames[-1].lineno}" if frames else ""
    inner = getattr(error, "inner_exception", None) or error
    text = " ".join(str(inner).split())[:200]
    return "failing", f"{type(inner).__name__}: {text} [{line}]", line


class _Kept:
    """A test whose exception is kept: a report has its text alone."""

    last: BaseException | None = None

    def __init__(self, suite: type[unittest.TestCase], name: str) -> None:
        _Kept.last = None
        self.test = suite(name)
        method = getattr(self.test, name)

        def kept() -> None:
            try:
                with warnings.catch_warnings():
                    # What irc fails on torch runs, with a warning: here it is a failure.
                    warnings.filterwarnings("error", message=r"warning\[internal\]")
                    method()
            except BaseException as error:
                _Kept.last = error
                raise

        setattr(self.test, name, kept)
