"""What is watched is the start that the process is in, not one that has failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore

from irc.runtime import processes, watch


@pytest.fixture(autouse=True)
def unwatched() -> Iterator[None]:
    yield
    watch.stop_watching()


def test_a_join_that_fails_is_watched_no_more(tmp_path: Any, monkeypatch: Any) -> None:
    store = FileStore(str(tmp_path / "store"), 2)

    def fail(*_args: Any, **_options: Any) -> None:
        assert watch._watch is not None  # pyright: ignore[reportPrivateUsage]
        raise ValueError("the address is taken")

    def store_of(*_: Any) -> FileStore:
        return store

    monkeypatch.setattr(processes, "_store", store_of)
    monkeypatch.setattr(dist, "init_process_group", fail)
    with pytest.raises(ValueError, match="is taken"):
        processes.start_processes(0, 2)
    assert watch._watch is None  # pyright: ignore[reportPrivateUsage]


def test_the_store_of_a_new_start_is_watched(tmp_path: Any) -> None:
    first, second = (FileStore(str(tmp_path / name), 2) for name in "ab")
    watch.watch_in(first, 0, 2)
    own = watch._watch  # pyright: ignore[reportPrivateUsage]
    assert own is not None
    watch.watch_in(PrefixStore("group", first), 0, 2)
    assert watch._watch is own  # pyright: ignore[reportPrivateUsage]
    watch.watch_in(second, 0, 2)
    assert not own.is_alive
    assert second.check(["irc/watch/place/0"])
