"""How much work a function does, as a number that no other process can change."""

import sys
from collections.abc import Callable
from typing import Any


def calls(run: Callable[[], Any]) -> int:
    """How many functions `run` calls, Python's and built-in ones.

    Times of the same work differ by a factor when other tests fill the heap (a collection walks all
    of it) or the machine's cores are shared; this does not.
    """
    count = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count
