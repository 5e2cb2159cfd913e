"""Ranks on GPUs, as far as a machine without any can tell: who has which, and by what they talk."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from irc.runtime.device import own_device
from irc.runtime.processes import backend_of_processes


@pytest.mark.parametrize(
    ("local", "current", "count", "own"),
    [("3", 0, 4, 3), ("5", 0, 4, 1), ("3", 0, 1, 0), ("1", 2, 4, 2), ("", 0, 4, 0)],
)
def test_a_process_takes_the_gpu_of_its_place_unless_it_has_chosen_one(
    monkeypatch: pytest.MonkeyPatch, local: str, current: int, count: int, own: int
) -> None:
    monkeypatch.setenv("LOCAL_RANK", local)
    assert own_device(current, count) == own


def test_what_lies_on_gpus_goes_by_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend_of_processes() == "gloo" or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert backend_of_processes() == "cpu:gloo,cuda:nccl"
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert backend_of_processes() == "gloo"
