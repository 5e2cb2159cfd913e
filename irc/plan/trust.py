"""Whose code a plan's is, and what is done about a stranger's.

This page is what ``irc explain trust`` prints.

**What a plan can do.** A plan holds code: kernels as text (``kernels/``), which ``irc.load`` and
``irc run`` compile, and machine code (``native/*.so``), which :mod:`irc.runtime` loads. Whoever
wrote that code could have it do whatever you can do. All else in a plan is data, read strictly and
within limits; digests in its manifest say that files are whole, not whose they are.

**A plan is trusted** where one of these holds:

* Your irc wrote it on this machine. The hash of each plan is noted in your cache folder
  (``IRC_CACHE_DIR``, else ``~/.cache/irc``); a plan that was moved or copied is still that plan,
  and one that was changed is not.
* You say so: ``irc.load(PLAN, trust=True)``, ``irc.runtime.load(PLAN, trust=True)``,
  ``irc run PLAN --trust``; or once for all, ``irc trust PLAN``, which notes its hash.
* You name its whole hash, of which ``irc compile`` prints the beginning and ``irc trust`` all:
  ``irc.runtime.load(PLAN, hash="...")``, at least 32 digits.
* A key that you trust has signed it: ``irc sign PLAN --key FILE`` writes ``signature.json``, and
  the public key is a line of ``~/.config/irc/trusted-keys`` or of the file that
  ``IRC_TRUSTED_KEYS`` names. ``irc sign --new-key FILE`` makes a pair of keys, and
  ``irc compile --sign-key FILE`` signs what it writes.

**A plan that is not trusted** still runs with ``irc.load`` and ``irc run``: none of its code is
used. Its kernels are written again from its ``ir/``, in which every store is proven to stay inside
its buffer, and compiled here. (A load of a border or by an index is not proven: made with intent,
it could end the process or show its memory in a result, and can run nothing.) Ops that are neither
torch's nor ONNX's are run only where this process has declared them. ``irc.runtime`` cannot write
kernels, and refuses such a plan (``plan-untrusted``).

**What is checked of trusted code too.** The text of a kernel of the CPU may call nothing but
arithmetic and mathematical functions, and holds no assembler and no addresses as numbers. That is a
second lock, no proof: such a text can still write where it should not.

**Weights** have digests (``weights.digests.json``), which are compared where a file is not the one
that was written or compared here before, by place, size and time of the last change; and always
with ``irc.load(PLAN, verify=True)`` or ``irc check PLAN --weights``. Each rank compares what it
reads. Digests say that weights are whole; whose they are only a signature says. Weights beside
``irc.runtime``'s programs are compared on every load.

**What this does not do.** Launch files (``launch/``) are scripts: read them before you run them.
Plug-ins and files that you name with ``--import`` are code of yours. An untrusted plan may compute
something else than it says, or take all memory or time: a limit on these is the system's. Ranks of
one run trust each other: rank 0 sends its plan to all. Who can write your files, or change memory
of your processes, can do all this already.
"""

from __future__ import annotations

from pathlib import Path

from irc.errors import IrcError
from irc.plan import built
from irc.plan.files import SIGNATURE

NAMES = 32
"""Digits of a hash that nobody can find another plan for: 128 bits."""


def is_trusted(folder: Path, name: str, digest: str) -> bool:
    """True where the code of a folder may be run as it is.

    Args:
        folder: of the plan, or of its native program.
        name: of the file whose digest names all of it.
        digest: SHA-256 of that file.

    Raises:
        IrcError: ``signature-invalid``, ``key-invalid``, ``package-missing``.
    """
    if built.is_noted(digest):
        return True
    if not (folder / SIGNATURE).is_file():
        return False
    from irc.plan.signature import is_signed  # what programs without one need not import

    return is_signed(folder, name, digest)


def untrusted(what: str, where: str, because: str, *, also: str = "") -> IrcError:
    """Return the error for code that is not trusted and is needed as it is."""
    return IrcError(
        "plan-untrusted",
        what,
        where=where,
        because=because,
        help="where you trust who made it: trust=True or --trust, irc trust PLAN, or a signature "
        f"of a key that you trust (irc explain trust){also}",
    )
