"""The kernels of a plan as they are run: those of its files, where whose they are is known.

Of another plan none of its code is used: its kernels are written again from the program of level
task that its ``ir/`` holds, whose loops are proven to stay inside their buffers, and each buffer is
held against what plan.json gives (:mod:`irc.plan.trust`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from irc.plan import built, json_text
from irc.plan.files import MANIFEST
from irc.plan.json_text import corrupt
from irc.plan.load import LoadedPlan
from irc.plan.schema import Kernels, Library, Plan
from irc.plan.trust import is_trusted, untrusted

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from irc.dialects.task import KernelOp
    from irc.plan.sizes import PlanSizes

LIBRARIES = ("aten", "prims", "onnx", "irc")
"""Whose ops any plan may name: torch's, ONNX's and irc's own."""
WITH_FILES = ("aten::from_file",)
"""Ops among those that reach outside a program."""


def runnable(loaded: LoadedPlan) -> LoadedPlan:
    """Return a plan whose code may be run.

    Raises:
        IrcError: ``plan-untrusted`` where whose it is is not known, and it holds nothing to write
            its kernels from, or names ops of others; ``plan-corrupt`` where its parts do not fit
            together; ``signature-invalid``.
    """
    loaded = asked(loaded)
    if loaded.code != "unknown":
        return loaded
    own = hashlib.sha256(f"kernels of {loaded.hash}".encode()).hexdigest()
    if built.is_noted(own):
        return replace(loaded, code="rewritten")
    written = _written(loaded, str(loaded.folder))
    kernels = {name for name in loaded.texts if name.startswith("kernels/")}
    texts = {name: text for name, text in loaded.texts.items() if name not in kernels}
    if kernels == set(written) and all(loaded.texts[name] == written[name] for name in kernels):
        # The next load need not write what the plan holds.
        built.note(own)
    return replace(loaded, texts={**texts, **written}, code="rewritten")


def asked(loaded: LoadedPlan) -> LoadedPlan:
    """Return a plan whose ops may be run, and that says whether its kernels may be.

    Raises:
        IrcError: ``plan-untrusted`` for ops of others in a plan of which it is not known whose it
            is; ``signature-invalid``.
    """
    if loaded.code != "unknown":
        return loaded
    if loaded.folder is not None and is_trusted(loaded.folder, MANIFEST, loaded.hash):
        return replace(loaded, code="trusted")
    where = str(loaded.folder)
    actions = (*loaded.plan.prepared, *loaded.plan.actions)
    check_targets([a.attrs for a in actions if isinstance(a, Library)], where)
    return loaded


class Whose(Protocol):
    """A plan, of one program or several, of which it is known or not whose it is."""

    @property
    def is_known(self) -> bool:
        """Whether this user wrote it, or trusts who did."""
        ...

    @property
    def folder(self) -> Path | None:
        """Where it lies."""
        ...


def load_program(loaded: Whose, text: str, name: str) -> ModuleOp:
    """Read a program of a plan that is to be interpreted.

    Raises:
        IrcError: what :func:`irc.dialects.text.load` raises; ``plan-untrusted``.
    """
    from irc.dialects.text import load

    module = load(text, name)
    if not loaded.is_known:
        check_module(module, str(loaded.folder))
    return module


def check_module(module: ModuleOp, where: str) -> None:
    """Refuse a program that names ops of others; see :func:`check_targets`."""
    from irc.dialects.flow import ExternOp

    check_targets((op.plain for op in module.walk() if isinstance(op, ExternOp)), where)


def check_targets(calls: Iterable[Mapping[str, Any]], where: str) -> None:
    """Refuse ops that are neither torch's, ONNX's nor irc's, nor declared in this process.

    Args:
        calls: attributes of ops; a target and arguments in JSON, which may name other ops.
        where: the plan's folder.

    Raises:
        IrcError: ``plan-untrusted``.
    """
    from irc.ops.custom import declaration

    for attrs in calls:
        arguments = str(attrs.get("arguments", "")) or "[]"
        others = _names_in(json_text.parse(arguments, f"{where}: arguments of an op"))
        for target in (str(attrs.get("target", "")), *others):
            known = target.partition("::")[0] in ("", *LIBRARIES) and target not in WITH_FILES
            if not known and declaration(target) is None:
                raise untrusted(
                    f"the plan runs {target}, which is neither torch's nor ONNX's",
                    where,
                    "it was neither written on this machine nor signed by a key that you trust",
                    also="; or declare the op here: --import FILE",
                )


def _names_in(value: Any) -> list[str]:
    """Return what may name an op among the arguments of another."""
    if isinstance(value, str):
        return [value] if "::" in value else []
    if isinstance(value, dict):
        known = cast("dict[str, Any]", value)
        return _names_in([*known, *known.values()])
    if isinstance(value, list):
        return [name for item in cast("list[Any]", value) for name in _names_in(item)]
    return []


def read_kernels(loaded: LoadedPlan) -> dict[str, KernelOp]:
    """Return the kernels of level task that a plan's kernels were written from, by name.

    Those of a plan with open sizes that take them when they run have names in their sizes; others
    are as at its example.

    Raises:
        IrcError: ``plan-untrusted`` where the plan does not hold them.
    """
    from irc.dialects.task import KernelOp
    from irc.dialects.text import load
    from irc.plan.sizes import SHARED, SIZES

    stages = [name for name in loaded.texts if name.startswith("ir/")]
    last = max(stages, key=lambda name: int(name[3:].partition("-")[0]), default="")
    name = SHARED if SIZES in loaded.texts else last
    if name not in loaded.texts:
        raise untrusted(
            "the plan holds no program that its kernels could be written from again",
            str(loaded.folder),
            f"it has no {name or 'ir/'}, and nothing says whose its kernels are",
        )
    ops = load(loaded.texts[name].decode("utf-8", "replace"), name).body.block.ops
    return {op.sym_name.data: op for op in ops if isinstance(op, KernelOp)}


def check_calls(plan: Plan, kernels: Mapping[str, KernelOp], where: str) -> None:
    """Hold what each call gives a kernel against what the kernel was written for.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    calls = [c for a in (*plan.prepared, *plan.actions) if isinstance(a, Kernels) for c in a.calls]
    for index, sizes in dict.fromkeys((call.kernel, call.sizes) for call in calls):
        stated = plan.kernels[index]
        if (kernel := kernels.get(stated.name)) is None:
            raise corrupt(f"ir/ holds no kernel '{stated.name}'", where)
        buffers = [(arg.elements, arg.dtype) for arg in stated.args]
        if (stated.num_inputs, buffers) != (kernel.num_inputs.value.data, _buffers(kernel, sizes)):
            raise corrupt(f"kernel '{stated.name}' takes other buffers in ir/ than it is given",
                          where)  # fmt: skip


def _buffers(kernel: KernelOp, sizes: Sequence[int]) -> list[tuple[int, str]] | None:
    from irc.dialects.size import value_of
    from irc.dialects.task_types import BufferType

    if len(sizes) != len(kernel.symbols):
        return None
    values = dict(zip(kernel.symbols, sizes, strict=True))
    kinds = [arg.type for arg in kernel.args]
    return [(value_of(k.elements, values), k.dtype) for k in kinds if isinstance(k, BufferType)]


def _written(loaded: LoadedPlan, where: str) -> dict[str, bytes]:
    """Return the files of the kernels, written again."""
    plan = loaded.plan
    if not plan.kernels:
        return {}
    backend = _backend(plan)
    kernels = read_kernels(loaded)
    if loaded.sized is None:
        check_calls(plan, kernels, where)
        texts = {kernel.name: backend.emit(kernels[kernel.name]) for kernel in plan.kernels}
    else:
        texts = _written_open(loaded, loaded.sized.sizes, kernels, where)
    return {f"kernels/{n}{backend.extension}": text.encode() for n, text in texts.items()}


def _written_open(
    loaded: LoadedPlan, sizes: PlanSizes, kernels: dict[str, KernelOp], where: str
) -> dict[str, str]:
    from irc.dialects.size import lowest
    from irc.runtime.kernel_templates import kernel_templates

    instances = {t.like.sym_name.data: t.at(sizes.example) for t in kernel_templates(loaded, sizes)}
    for kernel in instances.values():
        kernel.verify()
    check_calls(loaded.plan, {**kernels, **instances}, where)
    spans = (*sizes.symbols, *sizes.quotients)
    low, most = ({s.symbol: getattr(s, side) for s in spans} for side in ("low", "high"))
    backend = _backend(loaded.plan)
    texts = {name: backend.emit(kernel) for name, kernel in instances.items()}
    with lowest(low):
        for name in (kernel.name for kernel in loaded.plan.kernels if kernel.name not in instances):
            kernel = kernels[name]
            why = backend.run_time_sizes(kernel, most) if kernel.symbols else None
            if why is not None:
                raise corrupt(f"kernel '{name}' cannot take its sizes when it runs: {why}", where)
            texts[name] = backend.emit(kernel)
    return texts


def _backend(plan: Plan) -> Any:
    # Backends stand above the runtime: it knows their names, as the register of backends does.
    from irc.runtime.segments import check_backend

    check_backend(plan.backend)
    module, _, name = import_module("irc.backends").BUILTIN[plan.backend].partition(":")
    return getattr(import_module(module), name)()
