"""Mappings and tiles cover the space, for every target."""

import pytest

from irc.dialects.mapping_attr import verify_coverage
from irc.kernels.schedule import CPU_CHUNKS, TARGETS, schedule


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("template", "space", "parallel"),
    [
        ("rows", (1,), 1),
        ("rows", (1000003,), 1),
        ("rows", (5, 7, 11), 3),
        ("rows", (1000, 768), 1),
        ("rows", (1, 100000), 1),
        ("rows", (3, 5, 7, 11), 2),
        ("matmul", (1, 1, 1), 2),
        ("matmul", (100, 130, 77), 2),
        ("matmul", (2, 3, 1, 4096, 11), 4),
    ],
)
def test_mappings_cover_the_tasks(
    template: str, space: tuple[int, ...], parallel: int, target: str
) -> None:
    scheduled = schedule(template, space, parallel, target)
    verify_coverage(scheduled.mapping)
    assert all(n >= m for n, m in zip(scheduled.mapping.task_shape, space[:parallel], strict=True))
    # A grid, then what one worker does.
    assert [atom.kind for atom in scheduled.mapping.atoms] == ["spatial", "repeat"]
    # No worker is without a task.
    for extent, size, tile in zip(
        scheduled.mapping.atoms[0].extents, space, scheduled.mapping.atoms[1].extents, strict=False
    ):
        assert (extent - 1) * tile < size


def test_cpu_chunks_do_not_depend_on_threads_and_are_bounded() -> None:
    for space, parallel in [((10**7,), 1), ((7, 10**6), 2), ((4096, 768), 1), ((3, 5, 10**5), 2)]:
        assert schedule("rows", space, parallel, "cpu").mapping.num_workers <= 2 * CPU_CHUNKS
    assert schedule("rows", (100,), 1, "cpu").mapping.num_workers == 1


def test_chunks_of_contiguous_output_are_whole_cache_lines() -> None:
    _, tile = schedule("rows", (1000003,), 1, "cpu").mapping.atoms
    assert tile.extents[0] % 16 == 0


def test_gpu_tiles_shrink_for_small_matmuls() -> None:
    for target in ("sm_80", "sm_90", "sm_100"):
        large = schedule("matmul", (4096, 4096, 1024), 2, target, "f16").tile
        small = schedule("matmul", (64, 768, 768), 2, target, "f16").tile
        assert (large["block_m"], large["block_n"]) == (128, 128)
        assert small["block_m"] * small["block_n"] <= 64 * 64
