"""Find a cluster by preset name, or read one from a TOML file.

.. code-block:: toml

    name = "lab"

    [device]
    name = "A6000"
    peak_tflops = { f32 = 38.0, bf16 = 110.0 }   # what good kernels reach
    memory_gb = 48
    memory_gb_per_s = 600
    launch_us = 7
    # cores = 2                                  # for processes that share a host

    [[link]]            # innermost first
    devices = 4         # devices in one group of this level
    gb_per_s = 20       # one way, per device
    latency_us = 1
    launch_us = 7
    emulated = ["all_to_all"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from irc.cluster.presets import GB, PRESETS
from irc.cluster.topology import COLLECTIVES, Cluster, Collective, Device, Link
from irc.errors import IrcError, did_you_mean

Table = Mapping[str, Any]


def find_cluster(name: str) -> Cluster:
    """Return a preset, or the cluster that a ``.toml`` file describes.

    Raises:
        IrcError: ``cluster-unknown``, ``cluster-invalid`` or ``file-missing``.
    """
    if name in PRESETS:
        return PRESETS[name]
    if not name.endswith(".toml"):
        raise IrcError("cluster-unknown", f"no cluster '{name}'", help=did_you_mean(name, PRESETS))
    try:
        text = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise IrcError("file-missing", f"cannot read '{name}': {error.strerror}") from error
    return parse_cluster(text, name)


def parse_cluster(text: str, where: str = "<text>") -> Cluster:
    """Read a cluster from TOML.

    Raises:
        IrcError: ``cluster-invalid`` with the key that is missing or wrong.
    """
    try:
        table = tomllib.loads(text)
        _only(table, {"name", "device", "link"})
        device = _device(table["device"])
        links = tuple(_link(link) for link in table["link"])
        return Cluster(str(table.get("name", Path(where).stem)), device, links)
    except KeyError as error:
        problem = f"key {error} is missing"
    except (ValueError, TypeError, AttributeError) as error:
        problem = str(error)
    raise IrcError("cluster-invalid", "cannot read the cluster", where, problem)


def _device(table: Table) -> Device:
    keys = {"name", "peak_tflops", "memory_gb", "memory_gb_per_s", "launch_us", "cores"}
    _only(table, keys)
    peaks = {
        dtype: _positive("peak_tflops", tf) * 1e12 for dtype, tf in table["peak_tflops"].items()
    }
    if "f32" not in peaks:
        raise KeyError("peak_tflops.f32")
    return Device(
        str(table["name"]),
        peaks,
        _positive("memory_gb_per_s", table["memory_gb_per_s"]) * GB,
        int(_positive("memory_gb", table["memory_gb"]) * GB),
        float(table.get("launch_us", 0.0)) * 1e-6,
        int(table.get("cores", 0)),
    )


def _link(table: Table) -> Link:
    _only(table, {"devices", "gb_per_s", "latency_us", "launch_us", "emulated"})
    emulated = table.get("emulated", [])
    if unknown := set(emulated) - {"all_to_all", "reduce_scatter"}:
        raise ValueError(f"cannot emulate {sorted(unknown)}; collectives: {', '.join(COLLECTIVES)}")
    return Link(
        int(table["devices"]),
        float(table["latency_us"]) * 1e-6,
        _positive("gb_per_s", table["gb_per_s"]) * GB,
        float(table.get("launch_us", 0.0)) * 1e-6,
        frozenset(cast("list[Collective]", emulated)),
    )


def _positive(key: str, value: Any) -> float:
    if not float(value) > 0:
        raise ValueError(f"{key} is {value}; it must be positive")
    return float(value)


def _only(table: Table, keys: set[str]) -> None:
    if unknown := sorted(set(table) - keys):
        raise ValueError(f"unknown key '{unknown[0]}'; {did_you_mean(unknown[0], keys)}")
