"""Contenders of a benchmark: each in a process of its own, stopped while another is timed.

Two pools that spin beside each other spoil each other's times, so every worker but one is under
SIGSTOP. A worker is this file run as a script: it reads commands (``cold``, ``block N``) and
answers in JSON.
"""

from __future__ import annotations

import compileall
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def byte_compile() -> None:
    """Compile irc's modules to byte code, as pip does with what it installs, torch among it."""
    for folder in ("irc", "passes", "backends"):
        compileall.compile_dir(ROOT / folder, quiet=2)


class Contender:
    """One worker process.

    Args:
        name: what it runs, a key of :data:`tests.benchmarks.runners.RUNNERS`.
        model: which model (see :func:`tests.benchmarks.models.build`).
        threads: OpenMP threads.
        warm: an ended contender, whose caches it goes on with.
    """

    script = __file__
    """The worker; a benchmark of other things names its own."""

    def __init__(
        self, name: str, model: str, threads: int = 2, warm: Contender | None = None
    ) -> None:
        byte_compile()
        self.name = name
        self._caches = TemporaryDirectory() if warm is None else warm._caches
        env = dict(os.environ)
        # Cold means cold: no cache of an earlier run, of torch or of irc.
        env |= {
            "TORCHINDUCTOR_CACHE_DIR": f"{self._caches.name}/inductor",
            "XDG_CACHE_HOME": f"{self._caches.name}/xdg",
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": str(ROOT),
        }
        self._process = subprocess.Popen(
            [sys.executable, self.script, name, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            text=True,
        )
        self._answer()
        self._pause()

    def ask(self, command: str) -> Any:
        """Let the worker run alone for one command and return its answer."""
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._pause()
        return answer

    def close(self, *, keep_caches: bool = False) -> None:
        """End the worker and, unless another goes on with them, drop its caches."""
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        if not keep_caches:
            self._caches.cleanup()

    def _pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise RuntimeError(f"contender {self.name} ended with {self._process.wait()}")


def answer(value: Any) -> None:
    """Send a worker's answer."""
    print("@" + json.dumps(value), flush=True)


def peak_bytes() -> int:
    """Return the most memory that this process held (``ru_maxrss`` counts its parent's too)."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


def _worker(name: str, model: str) -> None:
    import torch

    from tests.benchmarks.limits import work_of
    from tests.benchmarks.models import build
    from tests.benchmarks.runners import RUNNERS, import_for

    module, inputs = build(model)
    import_for(name)
    with torch.no_grad():
        expected = module(*inputs)
        expected = expected[0] if isinstance(expected, tuple) else expected
        run: Any = None
        output, exact = expected, expected
        answer("ready")
        for line in sys.stdin:
            command, *rest = line.split()
            if command == "cold":
                start = time.perf_counter()
                run = RUNNERS[name](module, inputs)
                compile_seconds = time.perf_counter() - start
                output = run(*inputs)
                seconds = time.perf_counter() - start
                output = output[0] if isinstance(output, tuple) else output
                error = float((output - expected).abs().max() / expected.abs().max())
                answer(
                    {"seconds": seconds, "first_call": seconds - compile_seconds, "error": error}
                )
            elif command == "float64":
                # First the reference; after "cold" the error against it, and that of arithmetic.
                from tests.benchmarks.exact import error as relative
                from tests.benchmarks.exact import first_output, rounded

                if run is None:
                    exact = first_output(module, inputs)
                    answer("ready")
                else:
                    same = first_output(rounded(name, module), inputs)
                    values = relative(output, exact), relative(output, same)
                    answer(dict(zip(("whole", "arithmetic"), values, strict=True)))
            elif command == "reference":
                # In a process that has not compiled the module: what it gives in float64.
                from tests.benchmarks.exact import first_output

                torch.save(first_output(module, inputs), rest[0])
                answer("written")
            elif command == "against":
                from tests.benchmarks.exact import error as relative

                answer(relative(output, torch.load(rest[0])))
            elif command == "work":
                answer(work_of(module, inputs))
            elif command == "memory":
                answer(peak_bytes())
            elif command == "block":
                times: list[float] = []
                for _ in range(int(rest[0])):
                    start = time.perf_counter()
                    run(*inputs)
                    times.append(time.perf_counter() - start)
                answer(times)


if __name__ == "__main__":
    _worker(sys.argv[1], sys.argv[2])
