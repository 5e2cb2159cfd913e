"""How a call goes to torch: by ``torch.compile(backend="irc")``, which can break the graph.

Two kinds of calls go this way: those that autograd records, since AOTAutograd splits forward and
backward, and those that a whole capture cannot hold. Dynamo traces what it can, each graph between
two breaks is compiled, and Python runs what lies between them. The first break is warned of, with
its line; ``fullgraph=True`` makes it an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch._dynamo import config as dynamo_config

from irc.calls.breaks import Seen, breaks_so_far, lenient, watched
from irc.calls.left import LeftToTorchWarning, as_warning, gathering, is_bug, left_text
from irc.errors import IrcError
from irc.frontends.torch.failures import causes
from irc.pipeline import Options
from irc.process_wide import deep_recursion
from irc.record import FallBack

FOR_TORCH = ("passes", "rules", "pins", "cluster", "verify_each", "fullgraph", "strict", "record")
"""What the backend ``irc`` of torch.compile is told of the options."""


class ByTorch:
    """One module or function through torch.compile, its graphs planned as the user chose.

    Args:
        original: what runs uncompiled.
        options: of the pipeline.
    """

    def __init__(self, original: Callable[..., Any], options: Options) -> None:
        self._original = original
        self._fullgraph = options.fullgraph
        self._record = options.record
        # By default Dynamo does not look whether layers have got hooks since it traced them.
        dynamo_config.skip_nnmodule_hook_guards = False
        chosen = {name: getattr(options, name) for name in FOR_TORCH}
        if options.mesh.names:  # of one rank, whose pins place nothing
            chosen["pins"] = ""
        self._run: Callable[..., Any] = cast("Any", torch).compile(
            original,
            backend="irc",
            options=chosen,
            dynamic=True if options.dynamic else None,
            fullgraph=options.fullgraph,
        )
        self._is_whole = options.fullgraph
        self._has_warned = False

    def __call__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], failed: Exception | None = None
    ) -> Any:
        """Run a call.

        Args:
            args: of the call.
            kwargs: of the call.
            failed: what a whole capture of this call was refused with, if that was tried.

        Raises:
            IrcError: with ``fullgraph``, what the capture was refused with.
        """
        if not self._is_whole or failed is not None:
            return self._watched(args, kwargs, failed)
        before = breaks_so_far()
        try:
            return self._run(*args, **kwargs)
        except Exception as error:
            if self._fullgraph or not _is_of_trace(error) or breaks_so_far() != before:
                raise self._shown(error, failed) from None
        # Nothing has run yet: where Dynamo fails, the frame runs as it is.
        return self._watched(args, kwargs, failed)

    def _watched(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], failed: Exception | None
    ) -> Any:
        quiet = nullcontext() if self._fullgraph else lenient()
        with watched() as seen, gathering() as left, deep_recursion(), quiet:
            try:
                result = self._run(*args, **kwargs)
            except Exception as error:
                raise self._shown(error, failed) from None
        for error in seen.errors:
            if isinstance(inner := _inner(error), IrcError):
                raise inner
        self._is_whole = not seen.breaks
        self._note(seen, failed)
        self._warn(seen, left, failed)
        return result

    def _note(self, seen: Seen, failed: Exception | None) -> None:
        """Note each break, and a capture of the whole call on which irc fails."""
        if self._record is None:
            return
        # Dynamo may name one line twice, and says more the second time.
        for each in {(each.line or each.reason): each for each in seen.breaks}.values():
            what = f"Python runs a part of '{_name_of(self._original)}'"
            self._record.note(FallBack("break", what, each.reason, each.line))
        if failed is not None and is_bug(failed):
            reason = f"irc fails: {type(failed).__name__}: {failed}"
            self._record.note(FallBack("call", "the capture of a whole call", reason, ""))

    def _shown(self, error: Exception, failed: Exception | None) -> Exception:
        """Return what a user of irc.compile is to see for what torch.compile raises."""
        if (inner := _inner(error)) is not None:
            return inner
        if not self._fullgraph or not _is_of_trace(error):
            return error
        return failed or causes(error, self._original)[0]

    def _warn(self, seen: Seen, left: Sequence[str], failed: Exception | None) -> None:
        """Say once where the graph breaks; say each time what irc leaves or fails on."""
        texts = list(left)
        if failed is not None and is_bug(failed) and not texts:
            texts = [left_text(f"calls of '{_name_of(self._original)}'", failed)]
        for text in texts:
            warnings.warn(text, LeftToTorchWarning, stacklevel=2)
        if not seen.breaks or self._has_warned:
            return
        self._has_warned = True
        named = failed if isinstance(failed, IrcError) else None
        first = getattr(named, "errors", (named,))[0]
        graph_break = next((each for each in seen.breaks if each.where), seen.breaks[0])
        where, because = graph_break.where, graph_break.reason
        if isinstance(first, IrcError) and first.where not in ("", "unknown"):
            where, because = first.where, first.message
        text = as_warning(
            "graph-break",
            f"'{_name_of(self._original)}' is compiled in parts, and Python runs between them",
            where,
            because,
            "nothing, or write that line in tensor operations; fullgraph=True forbids it",
        )
        warnings.warn(text, LeftToTorchWarning, stacklevel=2)


def _inner(error: BaseException) -> Exception | None:
    """Return what a backend raised: a user of irc.compile has named no backend."""
    return getattr(error, "inner_exception", None)


def _is_of_trace(error: Exception) -> bool:
    """True for an error of Dynamo's, not of what the call computes."""
    return type(error).__module__.startswith("torch._dynamo") and _inner(error) is None


def _name_of(target: Callable[..., Any]) -> str:
    return getattr(target, "__qualname__", None) or type(target).__name__
