"""The worker of `onnx_latency`: a file in one session, which reads commands and answers in JSON."""

# pyright: basic
from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.benchmarks.contenders import answer, peak_bytes  # noqa: E402
from tests.benchmarks.onnx_cases import read_feeds  # noqa: E402

THREADS = 2


def onnx_runtime(model: str | bytes, threads: int) -> Any:
    """Return a session of ONNX Runtime's, of a file or of its bytes, with all optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def session(name: str, path: str, threads: int = THREADS) -> Any:
    """Return a session of a file: ``onnxruntime``'s or ``irc.onnx``'s."""
    if name == "onnxruntime":
        return onnx_runtime(path, threads)
    import irc.onnx

    options = irc.onnx.SessionOptions(intra_op_num_threads=threads)
    return irc.onnx.InferenceSession(path, options)


def import_for(name: str) -> None:
    """Import what a session needs, so that loading is loading alone."""
    if name == "onnxruntime":
        import onnxruntime  # noqa: F401
    else:
        import irc.onnx  # noqa: F401
        from tests.benchmarks.runners import import_for as import_irc

        import_irc("irc.compile")


def how(session: Any) -> str:
    """Say how irc runs the last call: kernels, or the interpreter; and what by the library."""
    if not hasattr(session, "versions"):
        return ""
    last = session.versions[-1]
    nodes = f", {last.library_nodes} nodes by library" if last.library_nodes else ""
    return ("compiled" if last.compiled else "interpreted") + nodes


def main(name: str, setup: str) -> None:
    """Answer commands until there are none."""
    import numpy as np

    model, feeds_path = json.loads(setup)
    feeds = read_feeds(Path(feeds_path))
    import_for(name)
    opened: Any = None
    answer("ready")
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "cold":
            start = time.perf_counter()
            opened = session(name, model)
            loaded = time.perf_counter()
            opened.run(None, feeds)
            answer(
                {"load": loaded - start, "first": time.perf_counter() - loaded, "how": how(opened)}
            )
        elif command == "save":
            outputs = opened.run(None, feeds)
            np.savez(rest[0], **{str(i): each for i, each in enumerate(outputs)})
            answer("saved")
        elif command == "memory":
            answer(peak_bytes())
        elif command == "block":
            times: list[float] = []
            for _ in range(int(rest[0])):
                start = time.perf_counter()
                opened.run(None, feeds)
                times.append(time.perf_counter() - start)
            answer(times)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
