"""The table of what passes: text of ``README.md``, made from the outcomes of all cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx

from tests.conformance.expected import MISSES
from tests.conformance.suite import SETS, Outcome

HEAD = """\
# ONNX conformance

The backend suite of onnx {version} (opset {opset}) through `irc.onnx.Backend` on the CPU, with the
suite's own tolerances. Made by `python -m tests.conformance`; do not edit.

Models whose sizes are all numbers go through the whole pipeline and run as compiled kernels, with
library calls for ops that have no flow form. Models whose values decide a size, and those with
sequences, strings or element types that flow lacks, run in the interpreter of dynamic programs.

| set | cases | pass | miss |
|---|---:|---:|---:|
"""


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the report as Markdown."""
    text = HEAD.format(version=onnx.__version__, opset=onnx.defs.onnx_opset_version())
    for group in (*SETS.values(), "all"):
        chosen = [o for o in outcomes if group in (o.group, "all")]
        missed = sum(1 for o in chosen if o.reason)
        text += f"| {group} | {len(chosen)} | {len(chosen) - missed} | {missed} |\n"
    text += "\n## Why cases miss\n\n| reason | cases |\n|---|---:|\n"
    missed = [o for o in outcomes if o.reason]
    reasons = Counter(reason_of(o) for o in missed)
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        text += f"| {reason} | {count} |\n"
    text += "\n| case | reason |\n|---|---|\n"
    for o in sorted(missed, key=lambda o: (o.group, o.name)):
        text += f"| `{o.name.removesuffix('_cpu')}` | {reason_of(o)} |\n"
    return text


def reason_of(o: Outcome) -> str:
    """Return why a case misses: as `expected` says, or what it ended in."""
    return MISSES.get(o.name, o.reason).replace("|", "\\|")
