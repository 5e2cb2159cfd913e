"""What a trace asks of the calls in it."""

from typing import Any

import torch

from irc.frontends.torch.traced_calls import Ask, TracedCalls


def test_what_is_read_of_a_tensor_is_asked_apart() -> None:
    asked: list[str] = []

    def told(word: str) -> Ask:
        def ask(*_call: Any) -> None:
            asked.append(word)

        return ask

    x = torch.ones(2)
    with TracedCalls([told("before")], read=[told("read")]):
        assert x.dtype == torch.float32
        assert asked == ["read"]
        assert x.add(1).shape == (2,)
    assert asked == ["read", "before", "read"]
