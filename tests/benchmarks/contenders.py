"""Contenders of a benchmark: each in a process of its own, stopped while another is timed.

Two pools that spin beside each other spoil each other's times, so every worker but one is under
SIGSTOP. A worker is this file run as a script: it reads commands (``cold``, ``block N``) and
answers in JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Contender:
    """One worker process.

    Args:
        name: what it runs: ``eager``, ``inductor``, ``irc.compile``, ``irc backend``.
        model: which model (see :func:`build`).
        threads: OpenMP threads.
    """

    def __init__(self, name: str, model: str, threads: int = 2) -> None:
        self.name = name
        self._caches = TemporaryDirectory()
        env = dict(os.environ)
        # Cold means cold: no cache of an earlier run, of torch or of irc.
        env |= {
            "TORCHINDUCTOR_CACHE_DIR": f"{self._caches.name}/inductor",
            "XDG_CACHE_HOME": f"{self._caches.name}/xdg",
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": str(ROOT),
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, name, model],
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

    def close(self) -> None:
        """End the worker and drop its caches."""
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        self._caches.cleanup()

    def _pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise RuntimeError(f"contender {self.name} ended with {self._process.wait()}")


def build(model: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a module in eval mode and its inputs, from fixed seeds."""
    import torch

    torch.manual_seed(0)
    if model == "gpt":
        from tests.models.gpt import GPT

        return GPT().eval(), (torch.randint(0, 256, (4, 256)),)
    if model == "tiny":
        return torch.nn.Linear(8, 8).eval(), (torch.randn(2, 8),)
    raise ValueError(f"no model {model!r}")


def _compiled(name: str, module: Any) -> Any:
    import torch

    match name:
        case "eager":
            return module
        case "inductor":
            return torch.compile(module)
        case "irc.compile":
            import irc

            return irc.compile(module)
        case "irc backend":
            return torch.compile(module, backend="irc")
        case _:
            raise ValueError(f"no contender {name!r}")


TRACING = (
    "torch._dynamo",
    "torch._export.non_strict_utils",
    "torch._functorch.aot_autograd",
    "torch.export._trace",
)
"""What every compiler of torch modules imports on first use."""

INDUCTOR = (
    "torch._inductor.compile_fx",
    "torch._inductor.cpp_builder",
    "torch._inductor.scheduler",
)
IRC = (
    "irc.backends.cpu",
    "irc.compiled",
    "irc.passes.canonicalize",
    "irc.passes.fuse",
    "irc.passes.map_tasks",
    "irc.plan.build",
    "irc.runtime.executor",
    "irc.torch_backend",
)


def _imports(name: str) -> None:
    """Import what the contender will need, so that the cold time is compiling alone."""
    for module in TRACING if name != "eager" else ():
        import_module(module)
    for module in {"inductor": INDUCTOR, "eager": ()}.get(name, IRC):
        import_module(module)


def _answer(value: Any) -> None:
    print("@" + json.dumps(value), flush=True)


def _worker(name: str, model: str) -> None:
    import torch

    module, inputs = build(model)
    _imports(name)
    with torch.no_grad():
        expected = module(*inputs)
        expected = expected[0] if isinstance(expected, tuple) else expected
        run: Any = None
        _answer("ready")
        for line in sys.stdin:
            command, *rest = line.split()
            if command == "cold":
                start = time.perf_counter()
                run = _compiled(name, module)
                found = run(*inputs)
                seconds = time.perf_counter() - start
                found = found[0] if isinstance(found, tuple) else found
                error = float((found - expected).abs().max() / expected.abs().max())
                _answer({"seconds": seconds, "error": error})
            elif command == "block":
                times: list[float] = []
                for _ in range(int(rest[0])):
                    start = time.perf_counter()
                    run(*inputs)
                    times.append(time.perf_counter() - start)
                _answer(times)


if __name__ == "__main__":
    _worker(sys.argv[1], sys.argv[2])
