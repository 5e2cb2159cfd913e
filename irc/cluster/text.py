"""A cluster as text: the TOML that `irc.cluster.load` reads back, and a summary for people."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from irc.cluster.device import Device
from irc.cluster.gpus import GB
from irc.cluster.interference import Interference
from irc.cluster.links import Fit, Link, Protocol
from irc.cluster.topology import Cluster


def to_toml(cluster: Cluster, comments: tuple[str, ...] = ()) -> str:
    """Print a cluster so that `find_cluster` reads the same one back.

    Args:
        cluster: what to print.
        comments: lines to put on top.
    """
    lines = [f"# {line}".rstrip() for line in comments]
    lines += [f"name = {_quoted(cluster.name)}", ""]
    kinds = cluster.unequal or ((cluster.device, 0),)
    for device, count in kinds:
        lines += ["[[device]]" if count else "[device]", *_device(device)]
        lines += [f"count = {count}", ""] if count else [""]
    for link in cluster.links:
        lines += ["[[link]]", *_link(link), ""]
    if cluster.graph is not None:
        lines += ["[graph]", f"launch_us = {_us(cluster.graph.launch_s)}"]
        lines += [*_emulated(sorted(cluster.graph.emulated)), ""]
        for edge in cluster.graph.edges:
            lines += ["[[edge]]", f"between = {json.dumps(list(edge.ends))}"]
            lines += [f"gb_per_s = {_number(edge.bytes_per_s / GB)}"]
            lines += [f"latency_us = {_us(edge.latency_s)}", ""]
    if asked := [f"{key} = {_quoted(value)}" for key, value in cluster.launching]:
        lines += ["[launch]", *asked, ""]
    return "\n".join(lines).rstrip() + "\n"


def as_facts(cluster: Cluster) -> dict[str, Any]:
    """Return what the file of a cluster says, by its own keys.

    >>> from irc.cluster.load import find_cluster
    >>> as_facts(find_cluster("8xH100"))["device"]["name"]
    'H100-80GB-SXM'
    """
    return tomllib.loads(to_toml(cluster))


def _device(device: Device) -> Iterator[str]:
    peaks = ", ".join(
        f"{dtype} = {_number(flops / 1e12)}" for dtype, flops in device.peak_flops.items()
    )
    yield f"name = {_quoted(device.name)}"
    yield f"peak_tflops = {{ {peaks} }}"
    yield f"memory_gb = {_number(device.memory_bytes / GB)}"
    yield f"memory_gb_per_s = {_number(device.bytes_per_s / GB)}"
    if device.launch_s:
        yield f"launch_us = {_us(device.launch_s)}"
    if device.cores:
        yield f"cores = {device.cores}"
    moves = {"host_gb_per_s": device.host_bytes_per_s, "disk_gb_per_s": device.disk_bytes_per_s}
    yield from (f"{key} = {_number(speed / GB)}" for key, speed in moves.items() if speed)
    if device.price_per_hour:
        yield f"price_per_hour = {_number(device.price_per_hour)}"
    if device.units:
        parts = device.attention, device.attention_backward
        forward, backward = map(_number, parts)
        yield f"units = {device.units}"
        yield f"attention = {{ forward = {forward}, backward = {backward} }}"
    yield from interference_toml(device.interference)


def interference_toml(table: Interference) -> Iterator[str]:
    """Yield the lines of a device's table; none where it has no rows."""
    if table:
        yield "interference = ["
        yield from (f"    {{ {_factors(row)} }}," for row in table.slower.values())
        yield "]"


def _factors(row: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} = {_number(factor)}" for kind, factor in row.items())


def _link(link: Link) -> Iterator[str]:
    yield f"devices = {link.devices}"
    yield f"gb_per_s = {_number(link.bytes_per_s / GB)}"
    yield f"latency_us = {_us(link.latency_s)}"
    if link.launch_s:
        yield f"launch_us = {_us(link.launch_s)}"
    shared = {
        "shared_gb_per_s": link.shared_bytes_per_s,
        "peer_gb_per_s": link.peer_bytes_per_s,
        "in_switch_gb_per_s": link.in_switch_bytes_per_s,
    }
    yield from (f"{key} = {_number(speed / GB)}" for key, speed in shared.items() if speed)
    yield f"tree = {str(link.tree).lower()}"
    yield from _emulated(sorted(link.emulated))
    if link.protocols:
        yield f"protocols = [{', '.join(map(_protocol, link.protocols))}]"
    for kind, fit in link.fits.items():
        yield f"[link.fits.{kind}]"
        yield from _fit(fit)


def _protocol(protocol: Protocol) -> str:
    return (
        f"{{ name = {_quoted(protocol.name)}, latency_us = {_us(protocol.latency_s)},"
        f" launch_us = {_us(protocol.launch_s)}, part = {_number(protocol.part)} }}"
    )


def _fit(fit: Fit) -> Iterator[str]:
    if fit.launch_s:
        yield f"launch_us = {_us(fit.launch_s)}"
    if fit.latency_s:
        yield f"latency_us = {_us(fit.latency_s)}"
    yield f"gb_per_s = {_number(fit.bytes_per_s / GB)}"
    if fit.cores:
        yield f"cores = {fit.cores}"


def _emulated(kinds: list[str]) -> list[str]:
    return [f"emulated = {json.dumps(kinds)}"] if kinds else []


def _quoted(text: str) -> str:
    # A JSON string of printable characters is a TOML one.
    return json.dumps(text, ensure_ascii=False)


def _us(seconds: float) -> str:
    return _number(seconds * 1e6)


def _number(value: float) -> str:
    return f"{value:.12g}"


def describe(cluster: Cluster) -> str:
    """Return what there is to know of a cluster, for people.

    >>> from irc.cluster.load import find_cluster
    >>> print(describe(find_cluster("2x8xMI300X")).splitlines()[0])
    2x8xMI300X: 16 devices
    """
    host = cluster.device.cores > 0
    what = f"a host of {cluster.device.cores} cores" if host else f"{cluster.num_devices} devices"
    lines = [f"{cluster.name}: {what}"]
    for device, count in cluster.unequal or ((cluster.device, 0),):
        lines += [f"  {f'{count} x ' if count else ''}{device.name}", *_shown(device)]
    for level, link in enumerate(cluster.links):
        lines += _shown_link(level, link)
    if cluster.graph is not None:
        graph = cluster.graph
        speeds = sorted(edge.bytes_per_s / GB for edge in graph.edges)
        span = f"{speeds[0]:.4g} to {speeds[-1]:.4g} GB/s each way"
        lines.append(f"  graph of {len(graph.edges)} wires, {span}")
    return "\n".join(lines)


def _shown(device: Device) -> Iterator[str]:
    peaks = ", ".join(
        f"{dtype} {_flops(flops)}" for dtype, flops in sorted(device.peak_flops.items())
    )
    each = " a core" if device.cores else ""
    yield f"    computes   {peaks}{each}"
    if device.units:
        yield (
            f"    kernels    {device.units} units share the tiles of products; attention reaches"
            f" {device.attention:.0%} of that forward, {device.attention_backward:.0%} backward"
        )
    yield (
        f"    memory     {device.memory_bytes / GB:.4g} GB at {device.bytes_per_s / GB:.4g} GB/s,"
        f" a kernel takes {device.launch_s * 1e6:.3g} us at least"
    )
    moves = {"the host": device.host_bytes_per_s, "a disk": device.disk_bytes_per_s}
    if shown := [f"{where} {speed / GB:.4g} GB/s" for where, speed in moves.items() if speed]:
        yield f"    to and from {', '.join(shown)}"
    for row in device.interference.slower.values():
        yield f"    at a time, times as long as alone: {_factors(row)}"


def _flops(flops: float) -> str:
    return f"{flops / 1e12:.4g} TF/s" if flops >= 1e12 else f"{flops / 1e9:.4g} GF/s"


def _shown_link(level: int, link: Link) -> Iterator[str]:
    yield (
        f"  level {level}: {link.devices} devices, {link.bytes_per_s / GB:.4g} GB/s each, a step"
        f" {link.latency_s * 1e6:.3g} us, a collective {link.launch_s * 1e6:.3g} us"
    )
    if link.shared_bytes_per_s:
        yield f"    devices of one group share {link.shared_bytes_per_s / GB:.4g} GB/s"
    if link.peer_bytes_per_s:
        yield f"    {link.peer_bytes_per_s / GB:.4g} GB/s to one other device"
    if link.in_switch_bytes_per_s:
        yield f"    switches sum by themselves: {link.in_switch_bytes_per_s / GB:.4g} GB/s"
    for p in link.protocols:
        yield (
            f"    {p.name}: step {p.latency_s * 1e6:.3g} us, collective {p.launch_s * 1e6:.3g} us,"
            f" {p.part:.0%} of the speed"
        )
    if link.emulated:
        yield f"    emulated: {', '.join(sorted(link.emulated))}"
    for kind, fit in link.fits.items():
        yield (
            f"    {kind:<15} measured: {fit.launch_s * 1e6:.3g} us +"
            f" {fit.latency_s * 1e6:.3g} us a step, {fit.bytes_per_s / GB:.4g} GB/s"
        )
