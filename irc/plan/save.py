"""Writing a plan folder: all of it, or nothing."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from irc.cluster.process import ENDED, machine, started, state_of
from irc.errors import IrcError
from irc.plan import built, files
from irc.plan.digests import note_weights, write_digests
from irc.plan.files import MANIFEST, PLAN, REFERENCES, WEIGHTS
from irc.plan.load import LoadedPlan, verified
from irc.plan.schema import Plan, to_json
from irc.plan.weights import Reference, references_text, with_values, write_safetensors

OLD = ".old"
LEFT = re.compile(r"irc-[0-9a-f]{8}-(\d+)-(\d*)\.[^.]+(?:\.old)?")
"""Names of folders that are being written: the machine, the process, and when it started."""
OTHER_MARKERS = ("host.json", "parts.json")
"""Files by which folders of plans are known that are no plan themselves."""


def make_plan(
    plan: Plan,
    *,
    ir: Mapping[str, str] | None = None,
    kernels: Mapping[str, str] | None = None,
    extra: Mapping[str, str] | None = None,
    torch_version: str = "",
) -> LoadedPlan:
    """Put a plan together in memory; what a single process runs, saves, or sends to its peers.

    Args:
        plan: the actions.
        ir: text after each pass by file name, ``00-capture.mlir``, the whole model first.
        kernels: source of each kernel by file name, ``k0.ll``.
        extra: other files by name, ``launch/torchrun.sh``.
        torch_version: for the manifest.
    """
    texts = {PLAN: to_json(plan)}
    texts |= {f"ir/{name}": text for name, text in (ir or {}).items()}
    texts |= {f"kernels/{name}": text for name, text in (kernels or {}).items()}
    texts |= extra or {}
    content = {name: text.encode() for name, text in sorted(texts.items())}
    manifest = files.make_manifest(content, plan.mesh, torch_version)
    return verified(LoadedPlan(plan, content, files.manifest_text(manifest).encode()))


def save_plan(
    folder: str | Path,
    plan: LoadedPlan,
    *,
    tensors: Mapping[str, Any] | None = None,
    references: Mapping[str, Reference] | None = None,
    force: bool = False,
    also: Callable[[Path], None] | None = None,
) -> str:
    """Write a plan and its weights into a new folder, and return the plan's hash.

    Everything is written beside the folder and moved there by one rename.

    Args:
        folder: where to.
        plan: what :func:`make_plan` gave.
        tensors: weights to write (torch tensors), whole, by argument name; those without values
            are left out.
        references: weights that stay in a file of the user's, by argument name.
        force: replace a plan that is there already.
        also: writes more into the folder, before it is at its place.

    Raises:
        IrcError: ``output-exists``, or ``option-value`` where the place cannot be written.
    """
    target = Path(folder).absolute()
    check_target(target, force=force)
    tensors = with_values(tensors or {})
    try:
        with published(target) as place:
            for name, content in (*plan.texts.items(), (MANIFEST, plan.manifest)):
                (place / name).parent.mkdir(exist_ok=True)
                (place / name).write_bytes(content)
            if tensors:
                write_safetensors(place / WEIGHTS, tensors)
                write_digests(place)
            if references:
                (place / REFERENCES).write_text(references_text(references), encoding="utf-8")
            if also is not None:
                also(place)
    except OSError as error:
        raise IrcError(
            "option-value", f"cannot write the plan to '{folder}': {error.strerror}"
        ) from error
    built.note(plan.hash)
    if tensors:
        note_weights(target)
    return plan.hash


def check_target(target: Path, *, force: bool = False, marker: str = MANIFEST) -> None:
    """Refuse a place that holds something: call it before the long work, too.

    Args:
        target: the place.
        force: allow one that holds what is to be written.
        marker: the file by which that is known.

    Raises:
        IrcError: ``output-exists``.
    """
    sweep(target)
    if not target.exists() and not target.is_symlink():
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    is_plan = any((target / name).is_file() for name in (marker, *OTHER_MARKERS))
    if force and is_plan:
        return
    raise IrcError(
        "output-exists",
        f"'{target.name}' exists already" + ("" if is_plan else " and is not a plan"),
        where=str(target),
        because="--force replaces plans only, not folders of something else" if force else (),
        help="choose another folder"
        if force or not is_plan
        else "choose another folder, or --force",
    )


@contextmanager
def published(target: Path) -> Generator[Path]:
    """Give a folder to fill; on success it becomes the target, on failure nothing is left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{target.name}.{_own_mark()}.", dir=target.parent))
    old = place.with_name(place.name + OLD)
    try:
        yield place
        # mkdtemp's folder is for its owner only; a plan is as public as other new files.
        mask = os.umask(0)
        os.umask(mask)
        place.chmod(0o777 & ~mask)
        if target.is_dir() and any(target.iterdir()):
            target.rename(old)
        try:
            place.rename(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


def sweep(target: Path) -> None:
    """Remove what processes of this machine that are gone were writing to a place.

    A plan that such a one was about to replace, and had put aside, goes back to its place.
    """
    here = _machine_mark()
    with suppress(OSError):
        for path in sorted(target.parent.glob(f".{glob.escape(target.name)}.irc-{here}-*")):
            mark = LEFT.fullmatch(path.name[len(target.name) + 2 :])
            if mark is None or state_of(int(mark[1]), mark[2]) not in ENDED:
                continue
            if path.name.endswith(OLD) and not target.exists():
                path.rename(target)
            else:
                shutil.rmtree(path, ignore_errors=True)


def _own_mark() -> str:
    pid = os.getpid()
    return f"irc-{_machine_mark()}-{pid}-{started(pid)}"


def _machine_mark() -> str:
    return hashlib.sha256(machine().encode()).hexdigest()[:8]
