"""What the compiler says of each kernel of a plan, kept beside the sources.

    python -m irc.backends.cuda.report PLAN/kernels --arch 90

writes ``report-sm_90.json`` into the folder and prints it as a table. Sizes are facts of the
source: the report is no part of a plan's digest, and can be made again from it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from irc.backends import KernelReport
from irc.backends.cuda.build import compile_source
from irc.errors import IrcError

LAUNCH = re.compile(r"  IRC_LAUNCH\((kernel_\w+), (\d+), (\d+), (\d+), stream")


def report_of(folder: Path, arch: int) -> Mapping[str, KernelReport]:
    """Compile each source of a folder and return what ptxas says, by kernel function.

    Raises:
        IrcError: ``file-missing`` for a folder without sources, ``compiler-missing``.
    """
    sources = sorted(folder.glob("*.cu"))
    if not sources:
        raise IrcError("file-missing", f"no .cu file in {folder}")
    reports: dict[str, KernelReport] = {}
    for path in sources:
        text = path.read_text(encoding="utf-8")
        logs = by_function(compile_source(text, arch))
        for name, _, _, shared in LAUNCH.findall(text):
            reports[name] = KernelReport.of_ptxas(logs.get(name, ""), int(shared))
    return reports


def by_function(log: str) -> Mapping[str, str]:
    """Return the part of what ptxas says that is about each entry function."""
    parts = re.split(r"Compiling entry function '(\w+)'", log)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def write_report(folder: Path, arch: int) -> Path:
    """Write the report of a folder into it, and return its path.

    Raises:
        IrcError: as ``report_of``.
    """
    reports = {name: asdict(report) for name, report in report_of(folder, arch).items()}
    path = folder / f"report-sm_{arch}.json"
    path.write_text(json.dumps(reports, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", type=int, default=90)
    args = parser.parse_args(arguments)
    try:
        path = write_report(args.folder, args.arch)
    except IrcError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'kernel':<48}{'registers':>10}{'spills':>8}{'shared':>9}")
    for name, report in json.loads(path.read_text(encoding="utf-8")).items():
        sizes = (report["registers"], report["spill_bytes"], report["shared_bytes"])
        print(f"{name:<48}{sizes[0]:>10}{sizes[1]:>8}{sizes[2]:>9}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
