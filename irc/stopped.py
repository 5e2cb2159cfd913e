"""A compilation that has stopped at a phase, as files: ``irc compile --to`` and ``--from``.

``model.mlir`` has the program, to be read, edited, and run through ``irc opt``. What else it takes
to go on is beside it: ``model.mlir.json`` has the options, how far it is, and the program after
each pass before, which ``irc check`` will hold the plan against; ``model.mlir.safetensors`` the
weights. Nothing in them is code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.flow import ExternOp
from irc.dialects.placement import Mesh
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.ops.custom import LIBRARIES, declaration
from irc.pipeline import Options
from irc.pipeline.make import Compilation
from irc.pipeline.phases import phase_name, position
from irc.pipeline.training import Training
from irc.plan import json_text
from irc.plan.weights import with_values, write_safetensors
from irc.program import Program
from irc.sharding.mesh import parse_mesh

FORMAT = 1
SUFFIX = ".mlir"
FACTS, WEIGHTS = ".json", ".safetensors"
"""What the names of the files beside the program end in."""


@dataclass(frozen=True)
class Chosen:
    """What a user chose of a compilation that writes a plan, as :class:`Options` has it."""

    mesh: str = ""
    backend: str = "cpu"
    cluster: str = "this-host"
    target: str = ""
    passes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    pins: str = ""
    memory_bytes: int | None = None
    stored_bytes: int | None = None
    stored_price: float = 0.0
    regather: bool = False
    samples: tuple[str, ...] = ()
    sums: str = ""
    layout: str = ""
    recompute: str = ""

    @staticmethod
    def of(options: Options) -> Chosen:
        """Take what is kept of options."""
        names = [each.name for each in fields(Chosen) if each.name != "mesh"]
        return Chosen(f"{options.mesh or ''}", **{name: getattr(options, name) for name in names})

    def options(self, training: Training | None) -> Options:
        """Return them as the pipeline takes them."""
        told: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        told["mesh"] = parse_mesh(self.mesh) if self.mesh else Mesh(())
        return Options(training=training, **told)


@dataclass(frozen=True)
class Step:
    """How the program becomes a step of training, as :class:`Training` has it."""

    pad: Mapping[str, Any] | None = None
    stream: Mapping[str, Any] | None = None
    split: Mapping[str, Any] | None = None
    differentiate: Mapping[str, Any] = field(default_factory=dict[str, Any])
    recompute: str | None = "none"
    optimizer: Mapping[str, Any] | None = None

    @staticmethod
    def of(training: Training) -> Step:
        """Take what a step of one program has."""
        return Step(**{each.name: getattr(training, each.name) for each in fields(Step)})

    def training(self) -> Training:
        """Return it as options have it."""
        return Training(**{each.name: getattr(self, each.name) for each in fields(self)})


@dataclass(frozen=True)
class Facts:
    """What it takes to go on, beside the program and its weights.

    Attributes:
        source: what the program was made from.
        options: what the user chose.
        phase: where it has stopped.
        done: how many passes have run.
        is_whole: whether the program is all that is to be computed.
        ranges: of inputs that are indices.
        training: of a step of training, how the program becomes one.
        texts: the program after each pass before, by file of the plan.
        extra: other files of the plan.
        declared: ops of others that were declared.
        format: of this file.
    """

    source: str
    options: Chosen
    phase: str
    done: int
    is_whole: bool
    ranges: Mapping[str, tuple[int, int]]
    training: Step | None = None
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
    declared: tuple[str, ...] = ()
    format: int = 0


def check_place(place: Path, *, force: bool) -> None:
    """Refuse, before the long work, a place that files cannot be written to.

    Raises:
        IrcError: ``option-value``, ``output-exists``.
    """
    if place.suffix != SUFFIX:
        raise IrcError(
            "option-value",
            f"'{place}': what --to writes is a program, in a file that ends in {SUFFIX}",
            help="as in --to fuse -o model.mlir; without -o it is printed",
        )
    for path in _files(place):
        # A link is replaced by a file, and what it leads to stays as it is: not without a word.
        if path.is_symlink() or (path.exists() and not (force and path.is_file())):
            raise IrcError(
                "output-exists",
                f"'{path}' exists already",
                because="it is a link or a folder" if force else (),
                help="choose another name" if force else "choose another name, or --force",
            )


def write_stopped(compilation: Compilation, place: Path, *, force: bool) -> tuple[Path, ...]:
    """Write a compilation as far as it is, and return the files.

    Raises:
        IrcError: ``output-exists``, or ``output-write`` where the place cannot be written.
    """
    check_place(place, force=force)
    options, lowering, program = compilation.options, compilation.lowering, compilation.program
    facts = Facts(
        program.source,
        Chosen.of(options),
        phase_name(lowering.done, lowering.passes),
        lowering.done,
        lowering.is_whole,
        compilation.ranges,
        None if options.training is None else Step.of(options.training),
        compilation.texts,
        compilation.extra,
        _declared(program.module),
        FORMAT,
    )
    tensors = with_values(program.tensors)
    # The program last: where that is there, all is.
    text, beside, weights = _files(place)
    written = [*([weights] if tensors else []), beside, text]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        for path in written:
            part = path.with_name(f".{path.name}.{os.getpid()}")
            if path == weights:
                write_safetensors(part, tensors)
            elif path == beside:
                part.write_text(json_text.dump(json_text.encode(facts)), encoding="utf-8")
            else:
                part.write_text(dump(program.module), encoding="utf-8")
            part.replace(path)
        if not tensors:
            weights.unlink(missing_ok=True)
    except OSError as error:
        raise IrcError("output-write", f"cannot write '{place}': {error.strerror}") from error
    return tuple(reversed(written))


def has_facts(place: Path) -> bool:
    """True of a program that ``irc compile --to`` has written."""
    return _files(place)[1].is_file()


def read_stopped(place: Path, phase: str = "") -> Compilation:
    """Read a compilation, to go on.

    Args:
        place: the file of the program.
        phase: where to go on from, instead of where it has stopped.

    Raises:
        IrcError: ``phase-unknown``; ``phase-invalid``; what is wrong with the text of the program.
    """
    beside = _files(place)[1]
    facts = _facts(beside)
    training = None if facts.training is None else facts.training.training()
    program = read_program(place, facts.source)
    # Without what was said of them the plan would be another one.
    still = _targets(program.module) - {*_declared(program.module)}
    if unknown := still & {*facts.declared}:
        raise _invalid(
            beside,
            f"{', '.join(sorted(unknown))} was declared where it has stopped, and is not here",
            "import what declares it: --import FILE.py",
        )
    try:
        compilation = Compilation(program, facts.options.options(training), facts.extra)
    except (TypeError, ValueError) as error:
        raise _invalid(beside, f"{error}") from error
    passes = compilation.lowering.passes
    num_passes = sum(map(len, passes))
    if not (0 <= facts.done <= num_passes and phase_name(facts.done, passes) == facts.phase):
        raise _invalid(
            beside,
            f"it has stopped behind {facts.done} passes, the last of them {facts.phase}",
            "this version of irc runs others before that: compile the model again",
        )
    compilation.texts.update(facts.texts)
    compilation.ranges.update(facts.ranges)
    compilation.lowering.is_whole = facts.is_whole
    compilation.lowering.done = position(phase, passes) if phase else facts.done
    return compilation


def read_program(place: Path, source: str = "") -> Program:
    """Read a program and its weights, as far as there are some.

    Raises:
        IrcError: ``file-missing``, ``phase-invalid``; what is wrong with the text.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    from irc.dialects.builder import arguments, entry
    from irc.dialects.flow import tensor
    from irc.runtime.dtypes import dtypes

    try:
        text = place.read_text(encoding="utf-8")
    except OSError as error:
        raise IrcError("file-missing", f"cannot read '{place}': {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise IrcError("ir-syntax", "the file is not UTF-8 text", f"{place}", f"{error}") from error
    module = load(text, f"{place}")
    weights = _files(place)[2]
    tensors: dict[str, torch.Tensor] = {}
    if weights.is_file():
        try:
            opener: Any = safe_open  # it states no types
            with opener(weights, framework="pt") as opened:
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise _invalid(weights, f"{error}") from error
    # Of a module on the meta device there are shapes alone.
    for role, name, value in arguments(entry(module)):
        if role in ("parameter", "buffer", "constant") and name not in tensors:
            kind = tensor(value)
            shape = kind.static_shape()
            tensors[name] = torch.empty(shape, dtype=dtypes()[kind.dtype], device="meta")
    return Program(module, tensors, source or place.name)


def _targets(module: ModuleOp) -> set[str]:
    return {op.target for op in module.walk() if isinstance(op, ExternOp)}


def _declared(module: ModuleOp) -> tuple[str, ...]:
    """Return the ops of others in a program that somebody has declared."""
    others = (t for t in _targets(module) if t.partition("::")[0] not in (*LIBRARIES, "irc"))
    return tuple(sorted(target for target in others if declaration(target) is not None))


def _facts(path: Path) -> Facts:
    try:
        data = json_text.parse_object(path.read_bytes(), f"{path}")
        if (number := data.get("format")) != FORMAT:
            raise _invalid(path, f"its format is {number!r}, and this irc reads {FORMAT}")
        return cast("Facts", json_text.decode(Facts, data, path.name))
    except OSError as error:
        raise _invalid(path, f"{error.strerror}") from error
    except IrcError as error:
        if error.code == "phase-invalid":
            raise
        raise _invalid(path, error.message) from error


def _invalid(path: Path, because: str, instead: str = "") -> IrcError:
    return IrcError(
        "phase-invalid",
        f"'{path}' is not what irc compile --to has written",
        because=because,
        help=instead or "write it again: irc compile MODEL --to PHASE -o FILE.mlir",
    )


def _files(place: Path) -> tuple[Path, Path, Path]:
    """Return the paths of the program, of what is known beside it, and of its weights."""
    return place, place.with_name(place.name + FACTS), place.with_name(place.name + WEIGHTS)
