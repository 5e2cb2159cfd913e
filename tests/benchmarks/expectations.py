"""What people expect of such a tool, a row each, and a command that proves it.

    python -m tests.benchmarks.expectations [--quick] [--only TEXT] [--json FILE]

Rows stand in tests/benchmarks/expectation_rows.py. A row's command is run by the shell in a folder
with a small module, plans of it and an ONNX file. It scores 2 where the command ends as it should
and says what it should, 1 where it ends so and does not say it, 0 where it does not end so. --quick
runs the rows that need no plan of training.

Targets (issue 25): no row below 2.
"""

# pyright: basic
from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.expectation_rows import FILES, PREPARED, ROWS, Row

LIMIT_S = 180.0


def run(command: str, folder: Path) -> tuple[int, str, float]:
    """Run a line in a folder; return its status, what it said, and seconds."""
    tools = Path(sys.executable).parent
    root = str(Path(__file__).resolve().parents[2])
    known = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", "")))),
    }
    start = time.monotonic()
    try:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=folder,
            env=known,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"took more than {LIMIT_S:.0f} s", LIMIT_S
    return done.returncode, done.stdout + done.stderr, time.monotonic() - start


def score(row: Row, status: int, said: str, folder: Path) -> int:
    """Return 0 to 2 for what a row's command did."""
    if status != row.status or ("Traceback (most recent call last)" in said and row.status != 1):
        return 0
    if row.file:
        written = folder / row.file
        said = written.read_text(encoding="utf-8", errors="replace") if written.exists() else ""
    return 2 if re.search(row.says, said) else 1


def main() -> int:
    """Run the rows and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="rows that need no plan of training")
    parser.add_argument("--only", metavar="TEXT", help="rows whose words have it")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    args = parser.parse_args()
    rows = [
        row
        for row in ROWS
        if (args.only or "") in row.what and not (args.quick and "steps" in row.command)
    ]
    scores: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in FILES.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        for command in PREPARED:
            if not (args.quick and " steps " in command):
                status, said, _ = run(command, folder)
                if status:
                    print(f"{command}: status {status}\n{said[-2000:]}")
        print(f"{'score':<6}{'s':>6}  {'what':<52}command")
        for row in rows:
            status, said, seconds = run(row.command, folder)
            points = score(row, status, said, folder)
            print(f"{points:<6}{seconds:>6.1f}  {row.what:<52}{row.command}", flush=True)
            if points < 2:
                print(f"        status {status}: {said.strip()[-300:]!r}", flush=True)
            scores.append(
                {"what": row.what, "command": row.command, "score": points, "seconds": seconds}
            )
    if args.json:
        Path(args.json).write_text(json.dumps(scores, indent=1) + "\n")
    counts = Counter(each["score"] for each in scores)
    print(
        f"expectations: {len(rows)} rows, {counts[2]} hold, {counts[1]} in part, {counts[0]} not"
        f"{': MISSED' if counts[0] + counts[1] else ''}"
    )
    return 1 if counts[0] + counts[1] else 0


if __name__ == "__main__":
    sys.exit(main())
