"""Reading a plan: from its folder, or from bytes that another rank sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeAlias

from irc.errors import IrcError
from irc.plan import files, json_text
from irc.plan.files import MANIFEST, PLAN
from irc.plan.in_notebook import InNotebook
from irc.plan.json_text import corrupt
from irc.plan.schema import Plan, from_json
from irc.plan.verify import verify_plan

if TYPE_CHECKING:
    from irc.plan.sizes import SizedPlan

Code: TypeAlias = Literal["own", "trusted", "unknown", "rewritten"]
MAX_HEADER_BYTES = 16 << 20


@dataclass(frozen=True)
class LoadedPlan(InNotebook):
    """A verified plan and its files.

    Attributes:
        plan: the content of plan.json.
        texts: content of each file of the manifest, by name; none where it is priced alone.
        manifest: the manifest as it was read; empty where the plan is priced alone.
        folder: where the plan lies, None for one that was received.
        code: whose the kernels are: ``own`` were written by this run, ``trusted`` were read and may
            be run as they are, ``unknown`` have to be asked about, and were perhaps ``rewritten``
            from the plan's IR (:mod:`irc.plan.trust`).
    """

    plan: Plan
    texts: Mapping[str, bytes]
    manifest: bytes
    folder: Path | None = None
    code: Code = "own"

    @property
    def is_known(self) -> bool:
        """Whether this user wrote the plan, or trusts who did."""
        return self.code in ("own", "trusted")

    @cached_property
    def hash(self) -> str:
        """What ranks compare before they start."""
        return files.plan_hash(self.manifest)

    @cached_property
    def sized(self) -> SizedPlan | None:
        """The plan for other sizes; None where all of them are fixed.

        Raises:
            IrcError: ``plan-version`` or ``plan-corrupt``.
        """
        from irc.plan.sizes import SIZES, SizedPlan, sizes_from_json

        if SIZES not in self.texts:
            return None
        return SizedPlan(self.plan, sizes_from_json(self.texts[SIZES]))

    def kernel_sources(self) -> dict[str, str]:
        """Return the source of each kernel by its name, in the order of the plan."""
        by_stem = {str(PurePosixPath(name).with_suffix("")): name for name in self.texts}
        sources: dict[str, str] = {}
        for kernel in self.plan.kernels:
            stem = f"kernels/{kernel.name}"
            if stem not in by_stem:
                raise corrupt(f"the plan has no file {stem}")
            sources[kernel.name] = self.texts[by_stem[stem]].decode("utf-8", "replace")
        return sources

    def ir(self) -> dict[str, str]:
        """Return the text of each level by file name, the first being the whole model."""
        return {
            name: text.decode("utf-8", "replace")
            for name, text in sorted(self.texts.items())
            if name.startswith("ir/")
        }


def load_plan(folder: str | Path, *, trust: bool = False) -> LoadedPlan:
    """Read and verify a plan folder.

    Args:
        folder: of the plan.
        trust: run its code as it is, whoever wrote it.

    Raises:
        IrcError: ``plan-missing``, ``plan-version`` or ``plan-corrupt``.
    """
    place = Path(folder)
    if not (place / MANIFEST).is_file() and (place / "host.json").is_file():
        raise IrcError(
            "plan-missing",
            f"'{folder}' holds a host program and a plan for each of its regions",
            because="values decide which region runs, and how often",
            help=f"irc run, check and explain plan take it; others take {folder}/regions/NAME",
        )
    if not (place / MANIFEST).is_file() and (place / "parts.json").is_file():
        raise IrcError(
            "plan-missing",
            f"'{folder}' holds a plan of several programs",
            because="its ranks run different stages, each a plan for each of its functions",
            help="irc run, check, explain plan, diff, simulate, launch, sign and trust take it",
        )
    if not (place / MANIFEST).is_file():
        raise IrcError(
            "plan-missing",
            f"no plan in '{folder}': it has no {MANIFEST}",
            help="irc compile MODEL.onnx -o PLAN writes one",
        )
    manifest = files.read_file(place, MANIFEST, json_text.MAX_BYTES)
    listed = files.parse_manifest(manifest, str(place / MANIFEST))
    texts = {name: files.read_file(place, name) for name in listed.files}
    return replace(from_files(manifest, texts, place), code="trusted" if trust else "unknown")


def from_files(
    manifest: bytes, texts: Mapping[str, bytes], folder: Path | None = None
) -> LoadedPlan:
    """Verify files against their manifest, and the plan itself.

    Raises:
        IrcError: ``plan-version`` or ``plan-corrupt``.
    """
    listed = files.parse_manifest(manifest, MANIFEST)
    if set(texts) != set(listed.files):
        raise corrupt(f"files differ from the manifest: {sorted(set(texts) ^ set(listed.files))}")
    for name, entry in listed.files.items():
        files.check_digest(name, texts[name], entry)
    plan = from_json(texts[PLAN])
    if plan.mesh != listed.mesh:
        raise corrupt(f"the plan is for mesh '{plan.mesh}', its manifest says '{listed.mesh}'")
    return verified(LoadedPlan(plan, texts, manifest, folder))


def verified(plan: LoadedPlan) -> LoadedPlan:
    """Return a plan whose content makes sense.

    Raises:
        IrcError: ``plan-version`` or ``plan-corrupt``.
    """
    verify_plan(plan.plan)
    _ = plan.sized  # says what is wrong with it
    return plan


def pack(plan: LoadedPlan) -> bytes:
    """Write all files of a plan, without weights, into one string of bytes, to be sent."""
    names = [MANIFEST, *sorted(plan.texts)]
    parts = [plan.manifest, *(plan.texts[name] for name in names[1:])]
    header = json_text.dump([[n, len(p)] for n, p in zip(names, parts, strict=True)]).encode()
    return len(header).to_bytes(8, "little") + header + b"".join(parts)


def unpack(data: bytes) -> LoadedPlan:
    """Read what :func:`pack` wrote.

    Raises:
        IrcError: ``plan-corrupt`` or ``plan-version``.
    """
    size = int.from_bytes(data[:8], "little")
    if size > min(MAX_HEADER_BYTES, len(data)):
        raise corrupt("a plan that was sent has no header")
    header = json_text.parse(data[8 : 8 + size], "header")
    sizes: tuple[tuple[str, int], ...] = json_text.decode(
        tuple[tuple[str, int], ...], header, "header"
    )
    texts: dict[str, bytes] = {}
    start = 8 + size
    for name, length in sizes:
        if length < 0 or start + length > len(data) or name in texts:
            raise corrupt("a plan that was sent is cut off")
        texts[name] = data[start : start + length]
        start += length
    if start != len(data) or MANIFEST not in texts:
        raise corrupt("a plan that was sent has other files than its header says")
    return from_files(texts.pop(MANIFEST), texts)
