"""What the system says about this machine."""

from pathlib import Path

import pytest

from irc.cluster.host import USUAL_SECOND_CACHE, second_cache_bytes


def describe(folder: Path, **caches: tuple[str, str, str]) -> Path:
    """Write caches as Linux describes them: level, type and size of each."""
    for name, values in caches.items():
        (folder / name).mkdir()
        for file, value in zip(("level", "type", "size"), values, strict=True):
            (folder / name / file).write_text(f"{value}\n", encoding="ascii")
    return folder


@pytest.mark.parametrize(
    ("size", "wanted"), [("2048K", 2 << 20), ("1280K", 1280 << 10), ("2M", 2 << 20)]
)
def test_second_cache(tmp_path: Path, size: str, wanted: int) -> None:
    folder = describe(
        tmp_path,
        index0=("1", "Data", "48K"),
        index1=("1", "Instruction", "32K"),
        index2=("2", "Unified", size),
        index3=("3", "Unified", "105M"),
    )
    assert second_cache_bytes(folder) == wanted


def test_where_nothing_is_said(tmp_path: Path) -> None:
    assert second_cache_bytes(tmp_path / "none") == USUAL_SECOND_CACHE
    (tmp_path / "index0").mkdir()
    assert second_cache_bytes(tmp_path) == USUAL_SECOND_CACHE
    odd = describe(tmp_path, index2=("2", "Unified", "lots"))
    assert second_cache_bytes(odd) == USUAL_SECOND_CACHE
