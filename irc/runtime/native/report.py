"""What a native program costs to import, to load, to keep and to call."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from irc.errors import IrcError
from irc.plan.native import Port
from irc.plan.native_host import HOST
from irc.runtime.native.folder import Native, native_place, open_at
from irc.runtime.native.memory import Array
from irc.runtime.native.program import load

if TYPE_CHECKING:
    from irc.runtime.native.host import NativeHostFolder


@dataclass(frozen=True)
class Run:
    """What is asked for; the fields are the options of ``python -m irc.runtime``."""

    plan: str
    inputs: str | None = None
    outputs: str | None = None
    threads: int | None = None
    code: str = ""
    hash: str = ""
    mapped: bool = False
    trust: bool = False
    repeat: int = 10
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])


def measure(run: Run, import_s: float) -> dict[str, Any]:
    """Load a program, call it, and return the figures.

    Raises:
        IrcError: as :func:`irc.runtime.native.program.load`; ``input-mismatch``,
            ``size-unknown``, ``size-outside``.
    """
    started = time.perf_counter()
    program = load(
        run.plan,
        threads=run.threads,
        code=run.code,
        hash=run.hash,
        mapped=run.mapped,
        trust=run.trust,
    )
    loaded = time.perf_counter()
    native_folder = _opened(run.plan)
    inputs = _inputs(run.inputs, program.ports(run.sizes))
    times: list[float] = []
    outputs: list[Array] = []
    for _ in range(max(run.repeat, 1)):
        began = time.perf_counter()
        outputs = program.run(inputs)
        times.append(time.perf_counter() - began)
    if run.outputs is not None:
        named = {f"{k}": value for k, value in enumerate(outputs)}
        np.savez(run.outputs, allow_pickle=False, **named)
    sizes = native_folder.bytes
    files, size = runtime_files()
    return {
        "code": program.code,
        "threads": program.threads,
        "hash": program.hash,
        "import_s": import_s,
        "load_s": loaded - started,
        "code_bytes": native_folder.code_bytes(program.code),
        "folder_bytes": sum(sizes.values()),
        "weight_bytes": native_folder.weight_bytes,
        "runtime_files": files,
        "runtime_bytes": size,
        **resident_bytes(),
        "first_s": times[0],
        "median_s": median(times),
        "calls": len(times),
    }


def _opened(plan: str) -> Native | NativeHostFolder:
    place = native_place(plan)
    if not (place / HOST).is_file():
        return open_at(place)
    from irc.runtime.native.host import open_native_host

    return open_native_host(place)


def report(figures: Mapping[str, Any]) -> str:
    """Print figures."""
    f = {k: v / 2**20 if k.endswith("_bytes") else v for k, v in figures.items()}
    lines = [
        ("program", f"{f['hash'][:16]}, code {f['code']}, {f['threads']} threads"),
        ("import", f"{f['import_s'] * 1e3:.0f} ms"),
        ("load", f"{f['load_s'] * 1e3:.0f} ms"),
        ("size", f"folder {f['folder_bytes']:.2f} MiB: code {f['code_bytes']:.2f} for this"
                 f" machine, weights {f['weight_bytes']:.2f};"
                 f" {f['runtime_files']} files of irc, {f['runtime_bytes']:.2f} MiB"),
        ("resident", f"{f['resident_bytes']:.1f} MiB, of which its own {f['own_bytes']:.1f}"),
        ("call", f"{f['median_s'] * 1e3:.3f} ms (median of {f['calls']};"
                 f" the first {f['first_s'] * 1e3:.3f})"),
    ]  # fmt: skip
    return "\n".join(f"{name:<12}{text}" for name, text in lines)


def runtime_files() -> tuple[int, int]:
    """Return how many source files of irc are loaded, and their bytes: what must be installed."""
    own = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "irc"]
    paths = {Path(module.__file__) for module in own if module.__file__ is not None}
    return len(paths), sum(path.stat().st_size for path in paths)


def resident_bytes() -> dict[str, int]:
    """Return this process's memory: resident, and what of it is no file's."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {"resident_bytes": 0, "own_bytes": 0}
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    kib = {name: int(rows.get(name, "0 kB").split()[0]) for name in ("VmRSS", "RssAnon")}
    return {"resident_bytes": kib["VmRSS"] << 10, "own_bytes": kib["RssAnon"] << 10}


def _inputs(path: str | None, ports: tuple[Port, ...]) -> list[Array]:
    if path is None:
        return [random_input(port, seed) for seed, port in enumerate(ports)]
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return [arrays[port.name] for port in ports]
    except (OSError, ValueError) as error:
        raise IrcError("input-mismatch", f"the inputs cannot be read: {error}", path) from None
    except KeyError as error:
        raise IrcError("input-mismatch", f"the file has no input {error}", path) from None


def random_input(port: Port, seed: int) -> Array:
    """Return numbers that an input may be."""
    from irc.runtime.native.dtypes import dtype_of

    random, dtype, shape = np.random.default_rng(seed), dtype_of(port.view.dtype), port.view.shape
    if dtype.kind in "iub":
        low, high = port.range or (0, 1)
        return random.integers(low, high + 1, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)
