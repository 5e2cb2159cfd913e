"""``irc check PLAN --weights``: all weights of a folder, held against their digests."""

from __future__ import annotations

from pathlib import Path

from irc.errors import IrcError
from irc.plan import files, json_text
from irc.plan.digests import check_weights
from irc.plan.files import MANIFEST, REFERENCES, WEIGHTS
from irc.plan.host import HOST
from irc.plan.native import FOLDER
from irc.plan.parts import PARTS
from irc.plan.shared import ENTRIES
from irc.plan.weights import parse_references


def check_all_weights(folder: str) -> str:
    """Compare the weights of a plan, of a host program, or of several plans with their digests.

    Returns:
        A line for each file.

    Raises:
        IrcError: ``plan-corrupt``; ``plan-missing`` where nothing is a plan.
    """
    place = Path(folder)
    if not any((place / name).is_file() for name in (MANIFEST, HOST, PARTS, ENTRIES)):
        raise IrcError("plan-missing", f"no plan in '{folder}'")
    paths, lines = [place / WEIGHTS], list[str]()
    if (place / REFERENCES).is_file():
        text = files.read_file(place, REFERENCES, json_text.MAX_BYTES)
        found = parse_references(text, str(place / REFERENCES))
        paths += sorted({place / reference.file for reference in found.values()})
    for path in paths:
        if path.name != WEIGHTS:
            lines.append(f"{path}: not the plan's own, and without digests")
        elif path.is_file():
            check_weights(path, known=False, always=True)
            lines.append(f"{path}: {path.stat().st_size} bytes as they were written")
    if (place / FOLDER / MANIFEST).is_file():
        lines.append(_native(place / FOLDER))
    return "\n".join(lines or [f"{folder}: no weights"])


def _native(place: Path) -> str:
    from irc.cluster.host import num_cores
    from irc.plan.native_host import HOST as NATIVE_HOST
    from irc.runtime.native.folder import load_weights, open_at
    from irc.runtime.native.host import open_native_host, stored_arrays

    if (place / NATIVE_HOST).is_file():
        host = open_native_host(place)
        stored_arrays(host)
        opened = [*host.regions.values()]
        size = host.weight_bytes
    else:
        opened = [open_at(place)]
        size = opened[0].weight_bytes
    for each in opened:
        load_weights(each, mapped=True, threads=num_cores())
    return (
        f"{place / files.WEIGHTS.replace('safetensors', 'bin')}: {size} bytes as they were written"
    )
