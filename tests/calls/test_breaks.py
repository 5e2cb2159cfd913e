"""Where a graph breaks is said once; what is asked to be whole is whole, or refused by name."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.calls import breaks
from irc.calls.left import LeftToTorchWarning
from irc.errors import InternalError, IrcError
from irc.torch_backend.counts import counters

X = torch.linspace(-1, 2, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def branching(x: Tensor) -> Tensor:
    h = x * 3
    if h.sum() > 0:
        return h.sin() + 1
    return h.relu() - 1


LINE = f"test_breaks.py:{branching.__code__.co_firstlineno + 2}"


@pytest.mark.parametrize("gradients", [False, True])
def test_the_first_break_is_warned_of_once_with_its_line(gradients: bool) -> None:
    fast = irc.compile(branching)
    x = X.clone().requires_grad_(gradients)
    with torch.set_grad_enabled(gradients), pytest.warns(LeftToTorchWarning) as caught:
        results = [fast(x), fast(-x), fast(x[:2])]
    assert len(caught) == 1
    text = str(caught[0].message)
    assert text.startswith("warning[graph-break]: 'branching'")
    assert LINE in text and "fullgraph=True" in text
    for got, argument in zip(results, (x, -x, x[:2]), strict=True):
        torch.testing.assert_close(got, branching(argument))


def test_parts_are_compiled() -> None:
    with torch.no_grad(), pytest.warns(LeftToTorchWarning, match="graph-break"):
        irc.compile(branching)(X)
    assert counters["graphs"] == 2 and counters["forward"] == 2


def test_what_a_capture_holds_goes_the_short_way() -> None:
    with torch.no_grad():
        fast = irc.compile(lambda x: x.sin() + 1)
        fast(X)
    assert not counters


@pytest.mark.parametrize("gradients", [False, True])
def test_fullgraph_forbids_a_break(gradients: bool) -> None:
    x = X.clone().requires_grad_(gradients)
    with torch.set_grad_enabled(gradients), pytest.raises(IrcError) as refused:
        irc.compile(branching, fullgraph=True)(x)
    assert refused.value.code == "capture-failed"
    assert refused.value.where.endswith(LINE)


def test_fullgraph_takes_what_dynamo_traces_whole() -> None:
    fast = irc.compile(torch.func.vmap(lambda a, b: a @ b), fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(fast(X[:, :, None], X[:, None]), X[:, :, None] @ X[:, None])


def test_on_a_gpu_a_break_is_an_error_that_says_so() -> None:
    with torch.no_grad(), pytest.raises(IrcError) as refused:
        irc.compile(branching, backend="triton")(X)
    assert refused.value.code == "capture-failed"
    assert "backend 'triton' is one graph" in str(refused.value)


def test_the_line_of_a_library_is_named() -> None:
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    with torch.no_grad(), pytest.warns(LeftToTorchWarning, match=r"modules/transformer.py:\d+"):
        irc.compile(model)(torch.randn(2, 5, 16), torch.randn(2, 4, 16), tgt_mask=mask)


def test_a_break_in_a_loop_is_named_with_gradients() -> None:
    def scaled(x: Tensor) -> Tensor:
        for _ in range(2):
            x = x * x.mean().item()
        return x

    x = X.clone().requires_grad_()
    line = f"test_breaks.py:{scaled.__code__.co_firstlineno + 2}"
    with pytest.warns(LeftToTorchWarning, match=line):
        torch.testing.assert_close(irc.compile(scaled)(x), scaled(x))


def test_nothing_is_printed_and_torch_logs_nothing(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        irc.compile(lambda x: x * x.sum().item())(X)
        with pytest.raises(RuntimeError):
            irc.compile(lambda x: x @ x)(X)
    assert capsys.readouterr().err == ""
    assert not [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]


def test_threads_that_watch_at_once_leave_loggers_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Each hears its own, of any level, and what others log is shown at the levels that it had."""
    logger = logging.getLogger(breaks.LOGGERS[0])
    before, filters = logger.level, list(logger.filters)
    entered, gone = threading.Event(), threading.Event()

    def log(text: str, level: int = logging.INFO) -> None:
        logger.log(level, text, exc_info=ValueError(text))

    def other() -> None:
        with breaks.watched() as seen:
            log("other", logging.WARNING)
            entered.set()
            gone.wait(60)
            heard.extend(map(str, seen.errors))

    heard = list[str]()
    thread = threading.Thread(target=other)
    with breaks.watched() as seen:
        thread.start()
        assert entered.wait(60)
        log("own", logging.WARNING)
    log("nobody's")
    log("shown", logging.WARNING)
    gone.set()
    thread.join(60)
    assert (heard, [str(each) for each in seen.errors]) == (["other"], ["own"])
    assert (logger.level, logger.filters) == (before, filters)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["shown"]


def planted() -> Any:
    where = "irc.frontends.torch.translate.Scope._lowered"
    return mock.patch(where, side_effect=InternalError("a planted bug"))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("way", [irc.compile, lambda f: torch.compile(f, backend="irc")])
def test_a_bug_of_ours_stops_nobody(way: Callable[..., Any], gradients: bool) -> None:
    x = X.clone().requires_grad_(gradients)
    fast = way(lambda x: x.sin() * 2)
    with (
        torch.set_grad_enabled(gradients),
        planted(),
        pytest.warns(LeftToTorchWarning, match="a planted bug") as caught,
    ):
        result = fast(x)
    (warning,) = caught
    assert str(warning.message).startswith("warning[internal]")
    torch.testing.assert_close(result, x.sin() * 2)
    assert result.requires_grad is gradients


@pytest.mark.parametrize("gradients", [False, True])
def test_fullgraph_shows_a_bug(gradients: bool) -> None:
    x = X.clone().requires_grad_(gradients)
    fast = irc.compile(lambda x: x.sin() * 2, fullgraph=True)
    with torch.set_grad_enabled(gradients), planted(), pytest.raises(InternalError):
        fast(x)


def test_a_bug_in_backward_leaves_that_to_torch() -> None:
    x = X.clone().requires_grad_()
    real = irc.torch_backend.aot.flat_program

    def failing(graph: Any, held: Any, source: str, **options: Any) -> Any:
        if source == "aot backward":
            raise KeyError("a planted bug")
        return real(graph, held, source, **options)

    with (
        mock.patch.object(irc.torch_backend.aot, "flat_program", failing),
        pytest.warns(LeftToTorchWarning, match="a backward pass, on which irc fails"),
    ):
        irc.compile(lambda x: x.sin() * 2)(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * X.cos())


def test_what_the_user_chose_wrongly_is_an_error_all_the_same(tmp_path: Path) -> None:
    with torch.no_grad(), pytest.raises(IrcError) as refused:
        irc.compile(branching, dynamic={"y": {0: "n"}})(X)
    assert refused.value.code == "option-value"


def test_a_mistake_of_the_user_is_eagers_error() -> None:
    def wrong(x: Tensor) -> Tensor:
        if x.shape[0] > 2:
            raise ValueError("three rows are too many")
        return x + 1

    fast = irc.compile(wrong)
    with torch.no_grad():
        with pytest.raises(ValueError, match="three rows are too many"):
            fast(X)
        torch.testing.assert_close(fast(X[:2]), X[:2] + 1)
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            irc.compile(lambda x: x @ x)(X)


def test_what_ran_before_an_error_has_run_once() -> None:
    def writes(x: Tensor) -> Tensor:
        x.add_(1)
        if x.sum() > 0:
            return x @ x
        return x

    x = X.clone()
    with torch.no_grad(), pytest.raises(RuntimeError, match="mat1 and mat2"):
        irc.compile(writes)(x)
    torch.testing.assert_close(x, X + 1)


def test_a_tensor_of_another_kind_is_not_read_as_a_dense_one() -> None:
    fast = irc.compile(lambda x, y: x @ y + 1)
    square, y = torch.relu(torch.randn(4, 4)), torch.randn(4, 3)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tensor in (square, square, square.to_sparse(), square.to_sparse_csr(), square):
            torch.testing.assert_close(fast(tensor, y), square @ y + 1)


@pytest.mark.parametrize("gradients", [False, True])
def test_control_flow_of_torch_is_a_region_with_compiled_branches(gradients: bool) -> None:
    def either(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda v: v.sin() + 1, lambda v: v.cos(), (x * 2,)) * 3

    x = X.clone().requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        fast = irc.compile(either)
        torch.testing.assert_close(fast(x), either(x))
        torch.testing.assert_close(fast(-x), either(-x))
    assert counters["regions run by torch"] and not counters["graphs run by torch"]


def test_gradients_of_what_a_container_holds_are_recorded() -> None:
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    irc.compile(lambda p: (p["a"][0] * 2).sum())({"a": [x]}).backward()
    ((y * 2).sum()).backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_gradients_of_what_a_function_holds_are_recorded() -> None:
    torch.manual_seed(0)
    layer, weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
    fast = irc.compile(lambda x: (layer(x) * weight).sum())
    for _ in range(2):
        fast(X).backward()
    gradients = [p.grad for p in (*layer.parameters(), weight)]
    for p in (*layer.parameters(), weight):
        p.grad = None
    for _ in range(2):
        (layer(X) * weight).sum().backward()
    for got, p in zip(gradients, (*layer.parameters(), weight), strict=True):
        torch.testing.assert_close(got, p.grad)


FACTOR = 2.0
WEIGHT = torch.ones(4)


def scaled(x: Tensor) -> Tensor:
    return x * WEIGHT * FACTOR


def test_what_a_function_reads_from_outside_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    power, layer = 2, nn.Linear(4, 4)

    def function(x: Tensor) -> Tensor:
        return layer(scaled(x)) ** power

    fast = irc.compile(function)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), function(X))
        power = 3
        torch.testing.assert_close(fast(X), function(X))
        monkeypatch.setitem(globals(), "FACTOR", 5.0)
        torch.testing.assert_close(fast(X), function(X))
        monkeypatch.setitem(globals(), "WEIGHT", torch.full((4,), 3.0))
        torch.testing.assert_close(fast(X), function(X))
        WEIGHT.mul_(2)
        torch.testing.assert_close(fast(X), function(X))
        layer.weight.data = torch.ones(4, 4)
        torch.testing.assert_close(fast(X), function(X))
        layer = nn.Linear(4, 4)
        torch.testing.assert_close(fast(X), function(X))
        assert irc.calls.compiled.statistics(fast).compilations == 6
        torch.testing.assert_close(fast(X), function(X))
        assert irc.calls.compiled.statistics(fast).compilations == 6


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("target", [torch.sin, lambda x: x + 1, nn.Linear(4, 4)])
def test_wrong_arguments_are_a_type_error(target: Any, gradients: bool) -> None:
    fast = irc.compile(target)
    with torch.set_grad_enabled(gradients):
        for args, kwargs in [((), {}), ((X, X), {}), ((X,), {"other": 1})]:
            with pytest.raises(TypeError):
                target(*args, **kwargs)
            with pytest.raises(TypeError):
                fast(*args, **kwargs)
        torch.testing.assert_close(fast(X), target(X))
