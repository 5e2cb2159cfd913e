"""Tests of Inductor's file that are known to differ on irc, and why."""

from __future__ import annotations

from collections.abc import Mapping

STREAM = "it wants the numbers that torch's generator gives; irc's come from a counter"

KNOWN: Mapping[str, str] = {
    "test_like_rands": STREAM,
    "test_randn_with_dtype_and_device": STREAM,
}
"""By the name of the test without its suffix (``_cpu``, ``_dynamic_shapes_cpu``)."""


def reason(name: str) -> str | None:
    """Return why a test is known to differ, None where it is not."""
    return KNOWN.get(name.removesuffix("_cpu").removesuffix("_dynamic_shapes"))
