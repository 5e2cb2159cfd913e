"""Starting a run on this machine: in this process, or as one process per rank under torchrun.

Processes of one run meet through a file in a private folder and talk over the loopback interface,
so nothing listens on the network. However the run ends, none of its processes is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from irc.cluster.cpus import BINDING, on_all_cpus
from irc.dialects.placement import Mesh
from irc.error_pages import REGISTRY
from irc.errors import IrcError
from irc.logs import PROGRESS
from irc.plan.host import is_host
from irc.plan.load import LoadedPlan, load_plan
from irc.plan.parts import PartsPlan
from irc.plan.parts_files import is_parts, load_parts
from irc.plan.training import check_recipe, recipe_of_plan
from irc.runtime.links import check_links
from irc.runtime.memory_needed import check_all_ranks
from irc.runtime.processes import STORE_VARIABLE, check_world, threads_per_process
from irc.runtime.report import RunReport
from irc.runtime.told import forwarding

WORKER = "irc.runtime.worker"
KILLED = re.compile(r"rank +: (\d+).*?exitcode +: -(\d+) \(pid: (\d+)\)", re.DOTALL)
GRACE_S = 10.0
"""How long processes that are told to end have, before they are killed."""


def run_plan(
    plan: str | Path,
    *,
    inputs: str | None = None,
    nproc: int | None = None,
    compare: bool = True,
    seed: int = 0,
    outputs: str | None = None,
    steps: int | None = None,
    check_every: int = 0,
    sizes: Mapping[str, int] | None = None,
    worker: str = WORKER,
    trust: bool = False,
    verify: bool = False,
    imports: Sequence[str] = (),
    trace: str | None = None,
    links: bool = False,
) -> RunReport:
    """Run a plan on this machine and report.

    Args:
        plan: the folder.
        inputs: an ``.npz`` file; random ones by default.
        nproc: the number of processes; must be that of the plan.
        compare: hold the outputs against the model run eagerly.
        seed: of random inputs.
        outputs: a ``.safetensors`` file for the outputs, by name; of a plan of training, for all
            parameters and states after the steps.
        steps: how many a plan of training makes.
        check_every: after so many of them, ranks compare what several hold copies of; 0: never.
        sizes: numbers for open sizes of the plan, by name; of random inputs.
        worker: the module that each process runs.
        trust: run the plan's code as it is, whoever made it.
        verify: compare weights with their digests, again if need be.
        imports: files and modules that each process imports before.
        trace: a file for what each rank does in the quickest of a few more calls or steps, as
            Chrome trace events; registers and arena are there twice meanwhile.
        links: have messages take as long as they do on the links of the plan's cluster.

    Raises:
        IrcError: what a rank reported, or ``run-failed`` where one ended without a word.
    """
    if sizes and inputs is not None:
        raise IrcError(
            "option-value",
            "--size is of random inputs, and --inputs gives its own",
            help="leave out one of the two",
        )
    for file in filter(None, (outputs, trace)):
        check_writable(Path(file))
    if is_host(plan):
        from irc.frontends.torch.named import import_all
        from irc.runtime.host_run import run_host

        if steps is not None or check_every:
            raise _no_training(steps)
        if trace:
            raise IrcError(
                "option-value",
                f"--trace is of plans, and '{plan}' holds one for each region",
                help=f"trace a region: irc run {plan}/regions/NAME --trace {trace}",
            )
        if links:
            raise IrcError("option-value", "--links: the plan is for one rank, which has no links")
        check_world(Mesh.parse(""), 1 if nproc is None else nproc)
        import_all(imports)
        return run_host(
            plan,
            inputs=inputs,
            compare=compare,
            seed=seed,
            outputs=outputs,
            sizes=sizes,
            trust=trust,
            verify=verify,
        )
    PROGRESS.info("reading %s", plan)
    loaded = _checked(plan, steps, check_every, sizes, links=links)
    mesh = loaded.mesh if isinstance(loaded, PartsPlan) else loaded.plan.device_mesh
    ranks = mesh.num_ranks
    check_world(mesh, ranks if nproc is None else nproc)
    check_all_ranks(loaded)
    words = [str(Path(plan).absolute()), f"--seed={seed}"]
    words += ["--compare"] if compare else []
    words += ["--trust"] if trust else []
    words += ["--verify"] if verify else []
    words += [f"--import={Path(n).absolute() if n.endswith('.py') else n}" for n in imports]
    words += [f"--size={name}={number}" for name, number in (sizes or {}).items()]
    words += [f"--steps={steps}"] if steps is not None else []
    words += [f"--check={check_every}"] if check_every else []
    words += [f"--inputs={Path(inputs).absolute()}"] if inputs is not None else []
    words += [f"--save={Path(outputs).absolute()}"] if outputs is not None else []
    words += [f"--trace={Path(trace).absolute()}"] if trace is not None else []
    if ranks == 1 and worker == WORKER:
        return _run_here(words)
    with tempfile.TemporaryDirectory(prefix="irc-run-") as folder:
        words += [f"--links={folder}"] if links else []
        return _run_processes(words, ranks, Path(folder), worker)


def _checked(
    plan: str | Path,
    steps: int | None,
    check_every: int,
    sizes: Mapping[str, int] | None,
    *,
    links: bool,
) -> LoadedPlan | PartsPlan:
    """Return a plan; options that are none of it are refused before ranks start."""
    if is_parts(plan):
        loaded = load_parts(plan)
        check_recipe(loaded)
        trains, is_open = True, False
    else:
        loaded = load_plan(plan)
        trains = recipe_of_plan(loaded) is not None
        is_open = loaded.sized is not None
    if (steps is not None or check_every) and not trains:
        raise _no_training(steps)
    if sizes and not is_open:
        raise IrcError("size-unknown", "all sizes of the plan are fixed", help="leave out --size")
    if links:
        check_links(loaded)
    return loaded


def _no_training(steps: int | None) -> IrcError:
    option = "--check" if steps is None else "--steps"
    return IrcError(
        "option-value",
        f"{option} is of plans of training, and this plan is of a call",
        help="leave it out, or compile with --train",
    )


def check_writable(file: Path) -> None:
    """Refuse a file that cannot be written, before the run that it is to keep.

    Raises:
        IrcError: ``output-write``.
    """
    existed = file.exists()
    try:
        file.open("ab").close()
    except OSError as error:
        raise IrcError(
            "output-write",
            f"cannot write '{file}': {error.strerror}",
            help="name a file in a folder that exists and that you may write to",
        ) from None
    if not existed:
        file.unlink()


def _run_here(words: Sequence[str]) -> RunReport:
    from irc.runtime.worker import parser, run_rank

    # A launcher's variables are about another run.
    with _without("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        report = run_rank(parser().parse_args(words))
    assert report is not None
    return report


@contextlib.contextmanager
def _without(*names: str) -> Generator[None]:
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def torchrun_command(ranks: int, folder: Path, worker: str, words: Sequence[str]) -> list[str]:
    """Return the command that starts the ranks of one machine; they meet in ``folder``."""
    return [
        sys.executable,
        *("-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc-per-node", str(ranks)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", str(folder / "rendezvous")),
        *("--rdzv-conf", "store_type=file", "--rdzv-id", uuid.uuid4().hex),
        *("--local-addr", "127.0.0.1", "--max-restarts", "0", "--monitor-interval", "0.1"),
        *("--log-dir", str(folder / "logs")),
        *("-m", worker, *words),
    ]


def worker_environment(folder: Path, ranks: int) -> dict[str, str]:
    """Return the environment of the processes of a run on this machine."""
    from irc.runtime.worker import REPORT_VARIABLE

    loopback = "lo0" if sys.platform == "darwin" else "lo"
    # Ranks that are bound each by itself would all be bound to the same places.
    own = {name: value for name, value in os.environ.items() if name not in BINDING}
    return {
        **own,
        "OMP_NUM_THREADS": str(threads_per_process(ranks)),
        "GLOO_SOCKET_IFNAME": loopback,
        # Else the launcher keeps a store of its own for its processes, on all interfaces.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # torchrun logs each process's end as an error of its own; `irc run` says it once.
        "LOGLEVEL": "CRITICAL",
        STORE_VARIABLE: str(folder / "store"),
        REPORT_VARIABLE: str(folder),
    }


def _run_processes(words: Sequence[str], ranks: int, folder: Path, worker: str) -> RunReport:
    command = torchrun_command(ranks, folder, worker, words)
    log = folder / "log.txt"
    with log.open("wb") as output, _interrupted_by(signal.SIGTERM):
        PROGRESS.info("starting %d processes", ranks)
        with forwarding(folder):
            status = _supervise(command, worker_environment(folder, ranks), output.fileno())
    report = folder / "report.json"
    if report.exists():
        return RunReport.from_json(report.read_text(encoding="utf-8"))
    raise _reported_error(folder, log, status)


def _supervise(command: Sequence[str], environment: Mapping[str, str], output: int) -> int:
    # A session of its own, so that Ctrl-C comes to us first and the end is orderly.
    with on_all_cpus():
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            # torchrun ends its workers on SIGTERM; they also end by themselves without it.
            process.terminate()
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def _interrupted_by(number: signal.Signals) -> Generator[None]:
    """Let a signal end the block as Ctrl-C does, so that what it started is ended too."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def _reported_error(folder: Path, log: Path, status: int) -> IrcError:
    """Return the error of the lowest rank that reported one."""
    for path in sorted(folder.glob("error-*.json"), key=lambda p: int(p.stem.split("-")[1])):
        code, message, where, because, advice = json.loads(path.read_text(encoding="utf-8"))
        if code in REGISTRY:
            return IrcError(code, message, where, because, advice)
    text = log.read_text(encoding="utf-8", errors="replace")
    # torchrun's own report: which process ended first, and how.
    _, _, cause = text.partition("Root Cause (first observed failure)")
    if (killed := KILLED.search(cause)) is not None:
        return IrcError(
            "rank-lost",
            f"rank {killed[1]} was killed by signal {killed[2]} (process {killed[3]})",
            because="the other ranks cannot go on without it, and were ended",
            help="signal 9 that nobody sent is most often want of memory; 11 is a fault of irc",
        )
    lines = text.splitlines()
    return IrcError(
        "run-failed",
        f"a process of the run ended early (status {status})",
        because=["the last it printed:", *lines[-8:]] if lines else "it printed nothing",
        help="status -9 means that it was killed, probably for want of memory",
    )
