"""Machine code tied to another program than it was compiled for: what only an enemy would do."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from irc.plan.native import MANIFEST, PROGRAM, SIZES, digests, owner_digest, parse_program

DIGEST_BYTES = 32


def tie(native: Path) -> None:
    """Write the digest of a folder's program behind its code, and all that names the code anew.

    A folder whose program cannot be read is left as it is, but for the manifest.
    """
    program, manifest = native / PROGRAM, native / MANIFEST
    listed: dict[str, Any] = json.loads(manifest.read_bytes())
    texts = [p.read_bytes() for p in (program, native / SIZES) if p.is_file()]
    codes = parse_program(texts[0], PROGRAM).codes
    digest = owner_digest(texts, codes)
    for code in codes:
        old = native / code.file
        content = old.read_bytes()[:-DIGEST_BYTES] + digest
        new = f"{code.name}-{hashlib.sha256(content).hexdigest()[:16]}.so"
        old.unlink()
        (native / new).write_bytes(content)
        program.write_text(program.read_text().replace(code.file, new))
        del listed["files"][code.file]
        listed["files"][new] = {}
    for name, entry in listed["files"].items():
        content = (native / name).read_bytes()
        entry.update(bytes=len(content), sha256=[*digests(content)])
    manifest.write_text(json.dumps(listed))
