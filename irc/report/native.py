"""What ``irc compile`` says of a plan's native program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from irc.plan.input_sizes import InputSizes
from irc.plan.native import Program
from irc.report.sizes import open_line


def native_lines(
    program: Program,
    codes: Mapping[str, bytes],
    weight_bytes: int,
    digest: str,
    sizes: InputSizes | None = None,
) -> str:
    """Describe a program, in two lines.

    Args:
        program: its description.
        codes: its shared objects, by file name.
        weight_bytes: of its weights.
        digest: names it.
        sizes: the sizes that it leaves open.
    """
    kinds = [f"{code.name} {size_text(len(codes[code.file]))}" for code in program.codes]
    parts = [*kinds, f"weights {size_text(weight_bytes)}", f"hash {digest[:16]}"]
    counts = Counter(step.called for step in program.library)
    ops = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    needs = f"torch runs {ops}" if ops else "numpy alone"
    if sizes is not None:
        parts.append(f"for all of {open_line(sizes)}")
    return f"{'native':<12}{', '.join(parts)}\n{'needs':<12}{needs}"


def no_native_line(reason: str) -> str:
    """Say why there is none."""
    return f"{'native':<12}none: {reason}"


def size_text(num_bytes: int) -> str:
    """Return a number of bytes as KiB or MiB."""
    if num_bytes < 1 << 20:
        return f"{num_bytes / 1024:.0f} KiB"
    return f"{num_bytes / 2**20:.2f} MiB"
