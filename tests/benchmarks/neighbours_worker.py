"""The worker of `neighbours`: one program in one of its contenders, with company on request."""

# pyright: basic
from __future__ import annotations

import json
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.benchmarks.contenders import answer  # noqa: E402

Call = Callable[[], Any]
FEWEST, MOST_S = 30, 4.0
"""Calls that a 90th percentile is taken of, and the seconds after which fewer have to do."""


def made(name: str, model: str, threads: int) -> Call:
    """Return a call of a program: a model of `tests.benchmarks.models`, or ``vad``."""
    import torch

    if model == "vad":
        return _vad(name, threads)
    from tests.benchmarks.models import build
    from tests.benchmarks.runners import RUNNERS

    module, inputs = build(model)
    with torch.no_grad():
        run = RUNNERS[{"irc": "irc.compile"}.get(name, name)](module, inputs)

    def call() -> Any:
        with torch.no_grad():
            return run(*inputs)

    return call


def _vad(name: str, threads: int) -> Call:
    from tests.exports.published import PUBLISHED

    voice = PUBLISHED["voice"]
    if voice.path is None:
        raise ModuleNotFoundError(f"pip install --no-deps {voice.package}")
    if name == "eager":
        import torch

        # The same net as its authors publish it for torch; it keeps the state itself.
        net = torch.jit.load(str(voice.path.with_name("silero_vad.jit")))
        samples = torch.randn(1, 512)

        def call() -> Any:
            with torch.no_grad():
                return net(samples, 16000)

        return call
    from tests.benchmarks.onnx_worker import session

    opened = session({"irc": "irc.onnx"}.get(name, name), str(voice.path), threads)
    feeds = voice.feeds()
    return lambda: opened.run(None, feeds)


class Company:
    """Threads of this process that keep calling something until they are told to stop."""

    def __init__(self, calls: list[Call]) -> None:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(call,)) for call in calls]
        for thread in self._threads:
            thread.start()

    def _run(self, call: Call) -> None:
        while not self._stop.is_set():
            call()

    def leave(self) -> None:
        """Stop, and wait until all have."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def torch_pool() -> Call:
    """Return a product of matrices on torch's threads."""
    import torch

    a = torch.randn(768, 768)
    return lambda: a @ a


def onnx_pool(threads: int) -> Call:
    """Return a product of matrices on threads of ONNX Runtime's."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    from tests.benchmarks.onnx_worker import onnx_runtime

    a = np.random.default_rng(0).standard_normal((768, 768)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "a"], ["b"])],
        "product",
        [value("a", TensorProto.FLOAT, a.shape)],
        [value("b", TensorProto.FLOAT, a.shape)],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=onnx.IR_VERSION_2023_5_5
    )
    session = onnx_runtime(model.SerializeToString(), threads)
    return lambda: session.run(None, {"a": a})


def times(call: Call, seconds: float) -> list[float]:
    """Return the seconds of calls that follow each other."""
    taken: list[float] = []
    begin = now = time.perf_counter()
    while now - begin < seconds or (len(taken) < FEWEST and now - begin < MOST_S):
        call()
        then, now = now, time.perf_counter()
        taken.append(now - then)
    return taken


def main(name: str, setup: str) -> None:
    """Answer commands until there are none: ``block SECONDS`` with what company there is."""
    # What torch's exporter has to say is not of the table.
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    model, threads = json.loads(setup)
    call = made(name, model, threads)
    times(call, 0.5)
    kinds: dict[str, Callable[[], list[Call]]] = {
        "none": list,
        "sessions": lambda: [made(name, model, threads) for _ in range(3)],
        "torch pool": lambda: [torch_pool()],
        "onnx pool": lambda: [onnx_pool(threads)],
    }
    answer("ready")
    for line in sys.stdin:
        _, seconds, company = line.strip().split(maxsplit=2)
        others = kinds[company]()
        for other in others:
            times(other, 0.2)
        beside = Company(others)
        times(call, 0.1)
        taken = sorted(times(call, float(seconds)))
        beside.leave()
        answer([taken[len(taken) // 2], taken[len(taken) * 9 // 10], len(taken)])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
