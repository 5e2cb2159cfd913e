"""What is refused of a compiled call, in a compiled module's or function's own terms."""

from __future__ import annotations

from torch import nn

from irc.calls.recompiles import MAX_VERSIONS
from irc.errors import IrcError
from irc.pipeline import Options
from irc.plan.parts import PIPE


def check_gradients(options: Options) -> None:
    """Refuse to record gradients where no backward pass is planned.

    Raises:
        IrcError: ``op-unsupported``.
    """
    if PIPE in options.mesh.names:
        raise IrcError(
            "op-unsupported",
            f"a module compiled for a mesh with an axis '{PIPE}' runs without gradients",
            because="stages work on several micro-batches at a time, so that a call of one "
            "batch has no backward pass of its own",
            help="train it by irc.compile_step, or leave the axis out",
        )
    if options.backend != "cpu":
        raise IrcError(
            "op-unsupported",
            f"a module compiled by backend '{options.backend}' runs without gradients",
            help="call it under torch.no_grad(), or compile it with the backend cpu",
        )


def parameters_are_whole(original: object) -> IrcError:
    """Return the error of a call that records gradients, of parameters that every rank has."""
    if isinstance(original, nn.Module):
        return IrcError(
            "op-unsupported",
            "gradients are recorded, and every rank has the parameters whole",
            because="they become parts that ranks hold in irc.compile, before an optimizer takes "
            "them, where the module is in training mode and runs under torchrun",
            help="m = irc.compile(model.train(), mesh=...), then the optimizer of m.parameters(); "
            "or call it under torch.no_grad()",
        )
    return IrcError(
        "op-unsupported",
        "a function compiled for several ranks runs without gradients",
        because="what it reads of modules outside of it cannot become parts that ranks hold",
        help="compile the module, or call the function under torch.no_grad()",
    )


def too_many() -> IrcError:
    """Return the error of a call that would be one version too many, on a mesh."""
    return IrcError(
        "input-mismatch",
        f"this would be version {MAX_VERSIONS + 1} of one module on a mesh",
        help="pad batches to a few sizes",
    )


def no_modes(mode: str) -> IrcError:
    """Return the error of a call under a mode, on a mesh."""
    return IrcError(
        "op-unsupported",
        "a call on a mesh cannot run under a mode",
        because=f"{mode}, and a program on a mesh calls no op that it could see",
        help="leave the mode for the call, or call the module uncompiled: irc.original(module)",
    )


def released(reason: str | None) -> IrcError:
    """Return the error of a frozen module's call that no version is for."""
    return IrcError(
        "weights-released",
        f"a frozen module is called in a way in which it was not called before: {reason}",
        because="irc.freeze has released the weights, so it cannot be compiled again",
        help="call it in each way before irc.freeze",
    )


def does_more(effect: str) -> IrcError:
    """Return the error of a call that does more than a program can say."""
    return IrcError(
        "capture-failed",
        "a call changes more than its arguments and what the module holds",
        because=effect,
        help="return what is to be kept, or call it where Python may run in between",
    )
