"""What the system says about this machine."""

from pathlib import Path

import pytest

from irc.cluster.host import USUAL_SECOND_CACHE, free_bytes, memory_bytes, second_cache_bytes


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


def test_free_memory_is_what_the_system_and_the_control_group_leave(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "group"
    meminfo.write_text("MemTotal:  900000 kB\nMemAvailable:   3000 kB\n", encoding="ascii")
    assert free_bytes(meminfo, group) == 3000 << 10
    group.mkdir()
    (group / "memory.current").write_text("900\n", encoding="ascii")
    (group / "memory.stat").write_text("anon 1\ninactive_file 100\n", encoding="ascii")
    (group / "memory.max").write_text("max\n", encoding="ascii")
    assert free_bytes(meminfo, group) == 3000 << 10
    (group / "memory.max").write_text("1000\n", encoding="ascii")
    assert free_bytes(meminfo, group) == 200
    assert free_bytes(tmp_path / "none", tmp_path / "none") == memory_bytes()
