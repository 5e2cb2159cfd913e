"""What is known of compiled kernels: one report for all that are the same to the compiler.

Kernels of different programs differ in names, in the comments that say where they come from, in
the number of programs and in the lengths of buffers; none of these reaches the machine code.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

BUFFER = re.compile(r'^    \("(\w+)", \d+, (\S+), \d+\),$')


@dataclass(frozen=True)
class Compiled:
    """A kernel on one target; ``error`` says why there is no code."""

    kernel: str
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    error: str = ""


def canonical(text: str, name: str) -> str:
    r"""Return what the compiler sees of a kernel file.

    >>> a = 'x\n\n@triton.jit\ndef kernel_k7_add(x0):\n    v = x0  # n36\n\nGRID = (4,)\n'
    >>> print(canonical(a, "k7_add"))
    import torch
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice
    <BLANKLINE>
    @triton.jit
    def kernel_k(x0):
        v = x0
    """
    imports = (
        "import torch\nimport triton\nimport triton.language as tl\n"
        "from triton.language.extra import libdevice\n\n"
    )
    body = text[text.index("@triton.jit") :].partition("\n\ndef launch(")[0]
    body = re.sub(rf"\b(kernel_)?{re.escape(name)}\b", "kernel_k", body)
    lines = [re.sub(r"\s*#.*$", "", line) for line in body.splitlines()]
    lines = [BUFFER.sub(r'    ("\1", 1, \2, 2),', line) for line in lines]
    dropped = ("GRID =", "NUM_INPUTS =", "DEVICE =")
    return imports + "\n".join(s for s in lines if s and not s.startswith(dropped))


class Known:
    """Reports by target and canonical text, kept in a file of JSON lines where one is named.

    Args:
        version: of the compiler: reports of another one do not count.
        path: the file; None keeps them in memory.
    """

    def __init__(self, version: str, path: Path | None = None) -> None:
        self.version, self.path = version, path
        self._reports: dict[str, Compiled] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                key = row.pop("key")
                self._reports[key] = Compiled(**row)

    def key(self, target: str, text: str) -> str:
        """Return what a canonical text is known by."""
        return hashlib.sha256(f"{self.version} {target}\n{text}".encode()).hexdigest()[:32]

    def get(self, key: str) -> Compiled | None:
        """Return a report, None for a kernel that was not compiled."""
        return self._reports.get(key)

    def add(self, key: str, report: Compiled) -> None:
        """Keep a report."""
        self._reports[key] = report
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **asdict(report)}) + "\n")
