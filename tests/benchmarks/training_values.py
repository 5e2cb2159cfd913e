"""The table of values: models under plans on processes, held against eager training on one."""

# pyright: basic
from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.pipeline_group import GroupFailedError, Groups
from tests.benchmarks.training_plans import PLANS, Case

STEPS = {"float32": 20, "float64": 20, "bfloat16": 200}
CLOSE = {"float32": 2e-6, "float64": 1e-11, "bfloat16": 1.0}
"""Of losses, relative to them; in bfloat16, to how far eager training in it is from float32."""
NORMS = {"float32": 1e-5, "float64": 1e-11}
"""Of gradients of the first step."""
SCRIPT = "training_worker.py"


class References:
    """What eager training on one process makes of each model."""

    def __init__(self, folder: str) -> None:
        self._group, self._folder, self._files = Groups(1, SCRIPT), folder, dict[Any, str]()

    def file(self, model: str, dtype: str) -> str:
        """Return the name of the file that has it."""
        key = model, dtype
        if key not in self._files:
            name = str(Path(self._folder, f"{model}-{dtype}.pt"))
            self._group.ask("one", "eager", model, dtype, STEPS[dtype], name)
            self._files[key] = name
        return self._files[key]

    def close(self) -> None:
        """End the process."""
        self._group.close()


def measure(
    wanted: Sequence[Case], known: Sequence[dict[str, Any]], results: Path | None
) -> list[dict[str, Any]]:
    """Train what is not known yet; print and write rows as they come."""
    before = {tuple(row[k] for k in wanted[0].facts): row for row in known} if wanted else {}
    rows: list[dict[str, Any]] = []
    groups: dict[int, Groups] = {}
    with TemporaryDirectory() as folder:
        references = References(folder)
        try:
            for case in wanted:
                row = before.pop(tuple(case.facts.values()), {})
                if not row or "FAILED" in missed(row):
                    # Groups of other sizes are done with: a cell comes after those of fewer ranks.
                    for size in [size for size in groups if size != case.ranks]:
                        groups.pop(size).close()
                    group = groups.setdefault(case.ranks, Groups(case.ranks, SCRIPT))
                    row = train(case, group, references)
                rows.append(row)
                print(show(row), flush=True)
                if results is not None:
                    results.write_text(json.dumps([*rows, *before.values()], indent=1) + "\n")
        finally:
            references.close()
            for group in groups.values():
                group.close()
    return rows


def train(case: Case, group: Groups, references: References) -> dict[str, Any]:
    """Return the row of a cell."""
    start = time.monotonic()
    words = case.model, case.plan, case.way, case.ranks, case.dtype
    try:
        file = references.file(case.model, case.dtype)
        ranks = group.ask("irc", "train", *words, file)
    except GroupFailedError as error:
        code = re.search(r"error\[([\w-]+)\]", str(error))
        kind = {"refused": code[1]} if code else {}
        return {**case.facts, **kind, "failed": str(error), "took": time.monotonic() - start}
    gaps = {k: max(rank[k] for rank in ranks) for k in ranks[0]}
    return {**case.facts, **gaps, "took": time.monotonic() - start}


def missed(row: dict[str, Any]) -> list[str]:
    """Return which targets a row misses."""
    if "failed" in row:
        wanted = PLANS[row["plan"]].refused.get(row["way"], "")
        return [] if row.get("refused") == wanted else ["FAILED"]
    if row["way"] in PLANS[row["plan"]].refused:
        return ["NOT REFUSED"]
    dtype = row["dtype"]
    wrong = [] if row["losses"] <= CLOSE[dtype] else ["LOSSES"]
    if dtype in NORMS and not row["gradients"] <= NORMS[dtype]:
        wrong.append("GRADIENTS")
    return wrong


def show(row: dict[str, Any]) -> str:
    """Return a line of the table."""
    line = (
        f"{row['model']:8} {row['plan']:10} {row['way']:5} {row['ranks']}  {row['dtype']}"
        f"  {row['took']:5.1f} s"
    )
    if "failed" in row:
        code = row.get("refused", "")
        return f"{line}  {f'refused: {code}' if not missed(row) else 'FAILED: ' + row['failed']}"
    gaps = f"losses {row['losses']:.1e}  "
    gaps += f"gradients {row['gradients']:.1e}  " if "gradients" in row else ""
    held = [f"{row[k]:.0%} {k}" for k in ("parameters", "states") if k in row]
    return f"{line}  {gaps}holds {', '.join(held)}  {' '.join(missed(row))}"


def verdict(rows: Sequence[dict[str, Any]]) -> int:
    """Print the figures in one line, and return 1 where a target is missed."""
    done = [row for row in rows if "failed" not in row]
    parts = [f"{len(rows)} cells, {len(rows) - len(done)} refused or failed"]
    for dtype in dict.fromkeys(row["dtype"] for row in done):
        own = [row for row in done if row["dtype"] == dtype]
        parts.append(f"{dtype} losses {max(row['losses'] for row in own):.1e} ({CLOSE[dtype]})")
        if dtype in NORMS:
            norms = max(row["gradients"] for row in own)
            parts[-1] += f", gradients {norms:.1e} ({NORMS[dtype]})"
    counts = Counter(word for row in rows for word in missed(row))
    parts += [f"{count} {word.lower()}" for word, count in counts.items()] or ["all met"]
    took = sum(row["took"] for row in rows)
    print(f"training values: {'; '.join(parts)}; {took / 60:.0f} minutes")
    return int(bool(counts))
