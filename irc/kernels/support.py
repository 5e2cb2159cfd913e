"""What a backend lacks, found before it emits anything; all of a plan's kernels in one report."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

from irc.dialects.task import KernelOp
from irc.errors import ErrorCollector, IrcError, IrcErrors
from irc.kernels.form import Form, Step

Expression: TypeAlias = Callable[[str, str, str], str | None]
"""Function, operand dtype and result dtype to a template, or None where there is none."""


def template_of(step: Step, expression: Expression) -> str | None:
    """Return the template of a pointwise step."""
    operand = step.operand_dtypes[1 if step.fn == "where" else 0]
    return expression(step.fn, operand, step.dtype)


def check_supported(
    form: Form,
    backend: str,
    types: Container[str],
    expression: Expression,
    products: Container[str] = ("matmul",),
) -> None:
    """Find everything in a kernel that a backend cannot express.

    Args:
        form: the kernel.
        backend: its name in the message.
        types: the dtypes it has.
        expression: its functions.
        products: the templates in which it multiplies.

    Raises:
        IrcError: ``op-unsupported``, all of them together.
    """
    missing = [
        f"buffer {number} of {buffer.dtype}"
        for number, buffer in enumerate(form.buffers)
        if buffer.dtype not in types
    ]
    for step in form.steps:
        if step.kind == "pointwise" and template_of(step, expression) is None:
            missing.append(f"{step.fn} on {', '.join(step.operand_dtypes)} giving {step.dtype}")
        elif step.kind != "store" and step.dtype not in types:
            missing.append(f"task.{step.kind} of {step.dtype}")
        elif step.kind == "reduce" and form.template in products:
            missing.append("task.reduce beside a contraction")
        elif step.kind == "contract" and form.template not in products:
            missing.append(f"task.contract in the template {form.template}")
    errors = ErrorCollector()
    for what in missing:
        errors.add(_error(form, backend, what))
    errors.check()


def emit_all(
    kernels: Sequence[KernelOp], emit: Callable[[KernelOp], str], extension: str
) -> dict[str, str]:
    """Emit kernels into files that have their names.

    Raises:
        IrcError: everything that any of the kernels lacks.
    """
    errors, files = ErrorCollector(), dict[str, str]()
    for kernel in kernels:
        try:
            files[f"{kernel.sym_name.data}{extension}"] = emit(kernel)
        except IrcErrors as several:
            for error in several.errors:
                errors.add(error)
        except IrcError as error:
            errors.add(error)
    errors.check()
    return files


def _error(form: Form, backend: str, what: str) -> IrcError:
    return IrcError(
        "op-unsupported",
        f"the {backend} backend has no {what}",
        where=f"kernel @{form.name}, {form.loc}",
        because=f"it comes from {', '.join(form.sources) or 'an op without an id'}",
        help="use a backend that has it, or cast before the operation",
    )
