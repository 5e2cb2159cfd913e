"""What a launcher asks about a cluster besides its devices: a partition, an image, host names.

It changes no price: `irc launch` reads it, from the table ``[launch]`` of a cluster file or from
its own options, and so does the batch script for Slurm that a plan holds. Each value ends in a
script or a manifest, so each is held to the characters that its launcher knows for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields

FORMS = {
    "partition": (r"[A-Za-z0-9_][A-Za-z0-9_.,-]*", "names of partitions, as in 'gpu' or 'a,b'"),
    "account": (r"[A-Za-z0-9_][A-Za-z0-9_.-]*", "the name of an account"),
    "time": (
        r"(\d+-\d{1,2}(:\d{1,2}){0,2}|\d+(:\d{1,2}){0,2})",
        "a time of Slurm: minutes, hours:minutes:seconds or days-hours",
    ),
    "image": (r"[A-Za-z0-9][A-Za-z0-9_.:/@-]*", "a container image, as in 'registry/name:tag'"),
    "hosts": (
        r"[A-Za-z0-9_][A-Za-z0-9_.:@-]*(,[A-Za-z0-9_][A-Za-z0-9_.:@-]*)*",
        "names of hosts for ssh, with commas between them",
    ),
}
"""Of each key, the values that it takes, and that in words."""


@dataclass(frozen=True)
class Launching:
    """Facts of a cluster that launchers ask for; empty ones are left out of what they get.

    >>> Launching(partition="gpu", time="2-00:00:00").time
    '2-00:00:00'
    >>> Launching(hosts="-oProxyCommand=evil")
    Traceback (most recent call last):
        ...
    ValueError: launch.hosts is '-oProxyCommand=evil'; it must be names of hosts for ssh, with \
commas between them

    Attributes:
        partition: of Slurm, one or several.
        account: of Slurm, that pays.
        time: after which Slurm ends the job.
        image: of the container, with irc and PyTorch in it.
        hosts: for ssh, the first one first; commas between them.
    """

    partition: str = ""
    account: str = ""
    time: str = ""
    image: str = ""
    hosts: str = ""

    def __post_init__(self) -> None:
        for key, value in self:
            form, words = FORMS[key]
            if not re.fullmatch(form, value):
                raise ValueError(f"launch.{key} is {value!r}; it must be {words}")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield the keys that are set, with their values."""
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        return (pair for pair in pairs if pair[1])


NOTHING_ASKED = Launching()
