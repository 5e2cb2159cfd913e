"""Collects `.mlir` files: each `// RUN:` line is a test.

A line such as ``// RUN: irc opt %s -p fuse | filecheck %s`` can be pasted into a shell (with the
path for ``%s``), and lit can run it. Here it runs in this process, which is ten times faster.
``not`` before a command wants it to fail; ``2>&1`` adds what it prints as errors.
"""

import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import filecheck.main
import hypothesis
import pytest

import irc.cli

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: a thread of kernels that waits for work would spin on another's. A
    # quarter of the processor time of kernel tests is that. OpenMP reads it when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# How long one example takes is the machine's business: two busy cores are no failure.
hypothesis.settings.register_profile("irc", deadline=None)
hypothesis.settings.load_profile("irc")

COMMANDS = {
    "irc": lambda words: irc.cli.main(words[1:]),
    "filecheck": filecheck.main.main,
}


def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let a worker that has no tests left take some of another's: single ones last a minute."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "worksteal"


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what this machine was calibrated to out of the tests, and the tests out of that.

    What is tested is irc, also where torch is faster: no first timing.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IRC_FIRST_TIMING", "off")
        patch.setenv("IRC_CACHE_DIR", str(tmp_path_factory.mktemp("irc-cache")))
        yield


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".mlir":
        return MlirFile.from_parent(parent, path=file_path)
    return None


class MlirFile(pytest.File):
    """A file of IR with `// RUN:` lines."""

    def collect(self) -> Iterator[pytest.Item]:
        lines = re.findall(r"^// RUN:\s*(.+)$", self.path.read_text(encoding="utf-8"), re.MULTILINE)
        if not lines:
            raise self.CollectError(f"{self.path} has no '// RUN:' line")
        for number, line in enumerate(lines, start=1):
            yield RunLine.from_parent(self, name=f"run{number}", line=line)


class RunLine(pytest.Item):
    """One `// RUN:` line."""

    def __init__(self, *, line: str, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.line = line

    def runtest(self) -> None:
        piped = ""
        for part in re.split(r"\s\|\s", self.line):
            words = [word.replace("%s", str(self.path)) for word in shlex.split(part)]
            piped = self._run(words, piped)

    def _run(self, words: list[str], piped: str) -> str:
        wants_failure = words[0] == "not"
        words = words[1:] if wants_failure else words
        output, errors = io.StringIO(), io.StringIO()
        errors = output if "2>&1" in words else errors
        words = [word for word in words if word != "2>&1"]
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(output),
            redirect_stderr(errors),
        ):
            patch.setattr(sys, "stdin", io.StringIO(piped))
            try:
                status = COMMANDS[words[0]](words)
            except SystemExit as end:
                status = end.code
        if bool(status) != wants_failure:
            shown = "" if errors is output else errors.getvalue()
            raise RunLineError(f"{shlex.join(words)}: exit {status}\n{output.getvalue()}{shown}")
        return output.getvalue()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: object) -> str:
        if isinstance(excinfo.value, RunLineError):
            return f"RUN: {self.line}\n{excinfo.value}"
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[os.PathLike[str], int | None, str]:
        return self.path, None, f"{self.path.name}: {self.line}"


class RunLineError(Exception):
    """A command of a RUN line ended otherwise than the line says."""
