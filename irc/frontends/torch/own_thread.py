"""One trace at a time, which threads that trace nothing do not notice.

torch.fx puts functions of a tracer in the places of ``nn.Module.__call__`` and ``__getattr__``, and
back what was there when it ends; that it traces is a flag of the process. Of two traces at a time
the one that ends last would put back what belongs to the other, for good, and a module that another
thread calls meanwhile would be traced, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from threading import get_ident
from typing import Any

from torch.fx import _symbolic_trace

_owners: list[int] = []
"""The thread that traces inside :func:`own_thread`, for each block that it has entered."""


def _of_own(flag: Callable[[], bool]) -> Callable[[], bool]:
    return wraps(flag)(lambda: flag() and (not _owners or _owners[0] == get_ident()))


# Dynamo keeps the functions that read the flag from when a function is compiled: so these stay.
_symbolic_trace.is_fx_tracing = _of_own(_symbolic_trace.is_fx_tracing)
_symbolic_trace.is_fx_symbolic_tracing = _of_own(_symbolic_trace.is_fx_symbolic_tracing)


@contextmanager
def own_thread() -> Generator[None]:
    """Trace inside, after the traces that other threads have begun by this or by Dynamo."""
    from torch._dynamo.convert_frame import compile_lock
    from torch._dynamo.decorators import skip

    patcher = _symbolic_trace._Patcher  # pyright: ignore[reportPrivateUsage]
    own = get_ident()
    with compile_lock:
        patch_method = patcher.patch_method

        def patched(
            self: Any, cls: type, name: str, new_fn: Callable[..., Any], deduplicate: bool = True
        ) -> None:
            before = getattr(cls, name)

            @wraps(new_fn)
            def chosen(*args: Any, **kwargs: Any) -> Any:
                return (new_fn if get_ident() == own else before)(*args, **kwargs)

            skip(chosen)  # Dynamo, in another thread, looks at what it calls
            patch_method(self, cls, name, chosen, deduplicate)

        patcher.patch_method = patched
        _owners.append(own)
        try:
            yield
        finally:
            _owners.pop()
            patcher.patch_method = patch_method
