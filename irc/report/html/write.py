"""Writing the page of a plan to a file."""

from __future__ import annotations

from pathlib import Path

from irc.errors import IrcError
from irc.report.html.page import GENERATOR, report_page


def write_report(
    plan: str | Path,
    out: str | Path | None = None,
    *,
    run: str | Path | None = None,
    beside: str | Path | None = None,
    force: bool = False,
) -> Path:
    """Write a plan as one page of HTML that loads nothing and has no scripts.

    Args:
        plan: its folder.
        out: the file; by default ``PLAN.html`` beside the folder. A page of irc that is there is
            replaced.
        run: a measured trace (of ``irc run PLAN --trace``, or a Chrome trace of torch.profiler), to
            be held against the prediction.
        beside: the folder of another plan, whose figures stand beside this one's.
        force: replace a file that is no page of irc.

    Returns:
        The file.

    Raises:
        IrcError: ``plan-missing``, ``plan-version`` or ``plan-corrupt`` of a plan;
            ``trace-unreadable`` or ``trace-mismatch`` of ``run``; ``file-missing`` where the file
            has no folder, ``output-exists`` where it is another's, ``output-write``.
    """
    folder = Path(plan).absolute()
    path = folder.with_name(f"{folder.name}.html") if out is None else Path(out)
    _check_place(path, force=force)
    text = report_page(plan, run=run, beside=beside)
    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise IrcError(
            "output-write", f"cannot write '{path}'", because=error.strerror or str(error)
        ) from None
    return path


def _check_place(path: Path, *, force: bool) -> None:
    """Refuse, before any work, what cannot or should not be written over."""
    if path.is_dir():
        raise IrcError("output-write", f"'{path}' is a folder", help=f"-o {path / 'plan.html'}")
    if not path.absolute().parent.is_dir():
        raise IrcError("file-missing", f"there is no folder for '{path}'")
    if path.exists() and not force and not _is_ours(path):
        raise IrcError(
            "output-exists",
            f"'{path}' exists already, and irc report has not written it",
            help="choose another file, or --force",
        )


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return f'content="{GENERATOR}"'.encode() in file.read(2048)
