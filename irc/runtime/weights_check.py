"""``irc check PLAN --weights``: all weights of a folder, held against their digests."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class CheckedFile:
    """A file of weights.

    Attributes:
        file: where it is.
        bytes: its size, as it was written; None where it has no digests, being another's.
    """

    file: str
    bytes: int | None

    def __str__(self) -> str:
        if self.bytes is None:
            return f"{self.file}: not the plan's own, and without digests"
        return f"{self.file}: {self.bytes} bytes as they were written"


def check_all_weights(folder: str) -> tuple[CheckedFile, ...]:
    """Compare the weights of a plan, of a host program, or of several plans with their digests.

    Returns:
        Each file; none where there are no weights.

    Raises:
        IrcError: ``plan-corrupt``; ``plan-missing`` where nothing is a plan.
    """
    place = Path(folder)
    if not any((place / name).is_file() for name in (MANIFEST, HOST, PARTS, ENTRIES)):
        raise IrcError("plan-missing", f"no plan in '{folder}'")
    paths, checked = [place / WEIGHTS], list[CheckedFile]()
    if (place / REFERENCES).is_file():
        text = files.read_file(place, REFERENCES, json_text.MAX_BYTES)
        references = parse_references(text, str(place / REFERENCES))
        paths += sorted({place / reference.file for reference in references.values()})
    for path in paths:
        if path.name != WEIGHTS:
            checked.append(CheckedFile(f"{path}", None))
        elif path.is_file():
            check_weights(path, known=False, always=True)
            checked.append(CheckedFile(f"{path}", path.stat().st_size))
    if (place / FOLDER / MANIFEST).is_file():
        checked.append(_native(place / FOLDER))
    return tuple(checked)


def _native(place: Path) -> CheckedFile:
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
    return CheckedFile(f"{place / files.WEIGHTS.replace('safetensors', 'bin')}", size)
