"""One rank of a plan without its peers: what they would send is zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from irc.plan.load import LoadedPlan
from irc.plan.schema import Start
from irc.runtime.collectives import Finish, Operands
from irc.runtime.inputs import inputs_for
from irc.runtime.recorder import Recorder
from irc.runtime.torch_driver import TorchDriver
from irc.runtime.weights import load_weights


def rank_alone(
    loaded: LoadedPlan, rank: int, threads: int, *, seed: int = 0, recorder: Recorder | None = None
) -> Callable[[], object]:
    """Return what calls a plan as one of its ranks, on random inputs.

    Args:
        loaded: a plan with a folder.
        rank: whose weights it has.
        threads: of its kernels.
        seed: of the inputs.
        recorder: notes what is run.
    """
    options: dict[str, Any] = {"communicator": _Absent(), "num_threads": threads}
    driver = TorchDriver(load_weights(loaded, rank), **options, recorder=recorder)
    run, inputs = driver.bind(loaded), inputs_for(loaded, None, seed)
    return lambda: run(*inputs)


class _Absent:
    """Collectives without peers: zeros are valid indices as well."""

    def start(self, action: Start, operands: Operands) -> Finish:
        operands.target.zero_()
        return lambda: None
