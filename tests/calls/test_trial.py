"""First timings: where torch is faster it runs the calls, and a trial leaves no trace."""

# pyright: basic
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import irc
from irc.calls import handed, trial
from irc.calls.compiled import statistics
from irc.calls.trial import is_behind
from irc.errors import IrcError
from irc.torch_backend.counts import counters

Way = Callable[[Any], Any]


def backend(target: Any) -> Any:
    """Compile for irc through Dynamo."""
    return torch.compile(target, backend="irc")


WAYS = pytest.mark.parametrize("way", [irc.compile, backend])


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(trial.VARIABLE)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def _behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every trial run both ways and find torch ahead."""

    def tried(own: Callable[[], object], torchs: Callable[[], object], **_: bool) -> Any:
        for run in (own, torchs, own, torchs):
            run()
        return 20e-6, 10e-6

    monkeypatch.setattr(trial, "timed", tried)


def computing(seconds: float, calls: list[float]) -> Callable[[], None]:
    """Return what computes for so long, and is counted."""

    def run() -> None:
        calls.append(seconds)
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    return run


def test_what_waits_for_others_is_not_behind() -> None:
    assert not is_behind(lambda: time.sleep(0.004), computing(0.001, []))


def test_what_takes_four_times_as_long_is_behind() -> None:
    assert is_behind(computing(0.004, []), computing(0.001, []))
    assert not is_behind(computing(0.001, []), computing(0.004, []))


def test_a_call_that_loses_next_to_nothing_is_not_tried() -> None:
    calls: list[float] = []
    assert not is_behind(lambda: None, computing(0.0, calls))
    assert not calls


def test_what_takes_long_is_not_tried() -> None:
    calls: list[float] = []
    assert not is_behind(computing(0.12, []), computing(0.0, calls))
    assert not calls


@pytest.mark.parametrize(
    ("first_s", "own_s", "torchs_s", "behind"),
    [(0.25, 0.004, 0.001, True), (0.25, 0.001, 0.004, False), (0.25, 0.25, 0.001, True)],
)
def test_a_first_call_may_compile(
    first_s: float, own_s: float, torchs_s: float, behind: bool
) -> None:
    """As that of a training step does, whose backward pass is compiled when it first runs."""
    calls: list[float] = []

    def own() -> None:
        computing(own_s if calls else first_s, calls)()

    assert is_behind(own, computing(torchs_s, [])) == behind


def test_what_takes_long_both_ways_is_not_repeated() -> None:
    own, torchs = list[float](), list[float]()
    assert not is_behind(computing(0.25, own), computing(0.25, torchs))
    assert (len(own), len(torchs)) == (1, 1)


def test_no_call_waits_for_a_trial() -> None:
    """Neither one that the trial makes itself, nor one of another thread."""
    meanwhile, depth = list[Tensor](), 0

    def own(x: Tensor) -> Tensor:
        nonlocal depth
        depth += 1
        if depth == 1:
            meanwhile.append(run(x))
            other = threading.Thread(target=lambda: meanwhile.append(run(x)), daemon=True)
            other.start()
            other.join(20)
        depth -= 1
        return x + 1

    run = trial.tried(own, lambda x: x - 1, copies=False)
    results = list[Tensor]()
    caller = threading.Thread(target=lambda: results.append(run(torch.ones(3))), daemon=True)
    caller.start()
    caller.join(60)
    assert results and len(meanwhile) > 1
    assert all(torch.equal(each, torch.full((3,), 2.0)) for each in meanwhile)


def test_a_bag_of_embeddings_runs_as_fast_as_torchs(request: pytest.FixtureRequest) -> None:
    # Two threads on a busy core wait for each other, and nothing is seen but that.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    index, offsets = torch.randint(0, 100, (32,)), torch.arange(0, 32, 4)

    def bag(table: Tensor) -> Tensor:
        return F.embedding_bag(index, table, offsets, mode="sum")

    run, table = irc.compile(bag), torch.randn(100, 16)
    assert torch.equal(run(table), bag(table))
    (left,) = run._irc_dispatcher.versions
    assert left.left == (statistics(run).left == 1)
    ours = min(_seconds(lambda: run(table)) for _ in range(200))
    theirs = min(_seconds(lambda: bag(table)) for _ in range(200))
    assert ours < 2 * theirs + 5e-6


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@pytest.mark.usefixtures("_behind")
def test_left_calls_give_what_eager_gives() -> None:
    run = irc.compile(lambda x, y: (x @ y).relu())
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    for _ in range(2):
        assert torch.equal(run(a, b), (a @ b).relu())
        assert torch.equal(run(a.t(), y=b), (a.t() @ b).relu())
    stats = statistics(run)
    assert stats.left == stats.compilations
    # Another size is tried by itself.
    assert torch.equal(run(a[:4], b), (a[:4] @ b).relu())
    assert statistics(run).left == stats.left + 1


@pytest.mark.usefixtures("_behind")
@WAYS
def test_a_write_to_an_argument_happens_once(way: Way) -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        x[0].add_(y)
        return x.sum()

    run, x = way(add), torch.zeros(3, 4)
    for count in (1, 2, 3):
        assert run(x, torch.ones(4)) == 4 * count
        assert torch.equal(x[0], torch.full((4,), float(count)))


class Counting(nn.Module):
    """Counts calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Tensor
        self.register_buffer("count", torch.zeros(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Count."""
        self.count.add_(1)
        return self.linear(x) + self.count


@pytest.mark.usefixtures("_behind")
@WAYS
@pytest.mark.parametrize("grad", [False, True])
def test_a_buffer_is_written_once(way: Way, grad: bool) -> None:
    module = Counting()
    run = way(module)
    with torch.set_grad_enabled(grad):
        for count in (1, 2, 3):
            x = torch.randn(2, 4, requires_grad=grad)
            result = run(x)
            assert torch.equal(module.count, torch.full((4,), float(count)))
            assert torch.allclose(result, module.linear(x) + count)
            if grad:
                result.sum().backward()
    assert (module.linear.weight.grad is not None) is grad


@pytest.mark.usefixtures("_behind")
@WAYS
@pytest.mark.parametrize("grad", [False, True])
def test_random_numbers_are_eagers(way: Way, grad: bool) -> None:
    def noisy(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) + torch.randn_like(x)

    run, x = way(noisy), torch.randn(16, 16, requires_grad=grad)
    with torch.set_grad_enabled(grad):
        torch.manual_seed(3)
        results = [run(x), run(x)]
        torch.manual_seed(3)
        assert all(torch.equal(each, noisy(x)) for each in results)


@pytest.mark.usefixtures("_behind")
@WAYS
def test_hooks_see_no_trial(way: Way) -> None:
    linear, seen = nn.Linear(4, 4), list[Tensor]()
    linear.weight.register_hook(seen.append)
    run = way(linear)
    for count in (1, 2, 3):
        run(torch.randn(2, 4)).sum().backward()
        assert len(seen) == count


CALLS = list[int]()
GENERATOR = torch.Generator()


@torch.library.custom_op("tests_trial::noisy", mutates_args=())
def noisy(x: Tensor) -> Tensor:
    """Add noise of a generator of its own, and count the call."""
    CALLS.append(1)
    return x + torch.rand(x.shape, generator=GENERATOR)


noisy.register_fake(torch.empty_like)
noisy.register_autograd(lambda _, gradient: gradient)

LIBRARY = torch.library.Library("tests_trial", "FRAGMENT")
LIBRARY.define("composite(Tensor x) -> Tensor")


def _composite(x: Tensor) -> Tensor:
    CALLS.append(1)
    return x * 2


LIBRARY.impl("composite", _composite, "CompositeImplicitAutograd")


@pytest.mark.usefixtures("_behind")
@WAYS
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("is_inside", [False, True])
def test_ops_of_others_are_called_as_often_as_in_eager(
    way: Way, grad: bool, is_inside: bool
) -> None:
    def inside(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: noisy(x) * 1, lambda x: x * 2, (x * 2,))

    def outside(x: Tensor) -> Tensor:
        return noisy(x * 2).sin()

    function = inside if is_inside else outside
    x = torch.ones(64, requires_grad=grad)
    GENERATOR.manual_seed(1)
    wanted = [function(x) for _ in range(3)]
    GENERATOR.manual_seed(1)
    CALLS.clear()
    run = way(function)
    for each in wanted:
        torch.testing.assert_close(run(x), each)
    assert len(CALLS) == 3


@pytest.mark.usefixtures("_behind")
def test_layers_that_repeat_are_timed() -> None:
    module = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)]).eval()
    run = irc.compile(module)
    with torch.no_grad():
        run(torch.randn(2, 8))
    assert statistics(run).left == 1


@WAYS
@pytest.mark.parametrize("grad", [False, True])
def test_ops_of_others_that_are_traced_are_not_timed(way: Way, grad: bool) -> None:
    run, x = way(lambda x: torch.ops.tests_trial.composite(x * 3).sin()), torch.ones(64)
    CALLS.clear()
    for _ in range(5):
        run(x.requires_grad_(grad))
    assert len(CALLS) < 10


@pytest.mark.usefixtures("_behind")
@WAYS
def test_hooks_of_what_is_saved_see_no_trial(way: Way) -> None:
    packed, unpacked = list[Tensor](), list[Tensor]()

    def pack(x: Tensor) -> Tensor:
        packed.append(x)
        return x

    def unpack(x: Tensor) -> Tensor:
        unpacked.append(x)
        return x

    run = way(lambda x, y: (x @ y).exp().sum())
    x, y = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
    counts = list[tuple[int, int]]()
    for _ in range(2):
        packed.clear()
        unpacked.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            result = run(x, y)
        result.backward()
        counts.append((len(packed), len(unpacked)))
    assert counts == [(3, 3)] * 2


@pytest.mark.usefixtures("_behind")
@WAYS
@pytest.mark.parametrize("before", [0, 1, trial.LEAST_CALLS - 1, trial.LEAST_CALLS + 1])
def test_a_checkpoint_computes_anew_what_it_has_computed(
    way: Way, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another way would save other tensors, which a checkpoint refuses."""
    monkeypatch.setattr(handed, "FIRST_LOOK", 2)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    run, x = way(module), torch.randn(4, 3)
    for _ in range(before):
        run(x).sum().backward()
    for _ in range(5):
        module.zero_grad()
        result = checkpoint(run, x, use_reentrant=False)
        run(x)
        result.sum().backward()
        own = [weight.grad for weight in module.parameters()]
        module.zero_grad()
        module(x).sum().backward()
        for one, weight in zip(own, module.parameters(), strict=True):
            torch.testing.assert_close(one, weight.grad)


def test_a_checkpoint_hands_no_calls_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.Entry, "is_behind", lambda *_: True)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    run, x = irc.compile(module), torch.randn(4, 3)
    for _ in range(2):
        result = checkpoint(run, x, use_reentrant=False)
        run(x)
        result.sum().backward()
    assert not statistics(run).left


@pytest.mark.usefixtures("_behind")
def test_gradients_without_dynamos_way_in() -> None:
    def cube(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).pow(3).sum()

    run, x, y = irc.compile(cube), torch.randn(8, requires_grad=True), torch.randn(8)
    for count in range(1, 6):
        assert torch.equal(run(x, y), cube(x, y))
        assert statistics(run).left == (count >= trial.LEAST_CALLS)
    x.grad = None
    run(x, y).backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, 3 * (x * y) ** 2 * y)
    with torch.no_grad():
        assert torch.allclose(run(x, y), cube(x, y))


class Doubled(nn.Module):
    """What Dynamo compiles."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).tanh()


class Recurrent(nn.Module):
    """What Dynamo leaves to Python, and where it is told, a graph beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.more = nn.LSTM(4, 4), Doubled()
        self.has_more = self.in_training = False

    def forward(self, x: Tensor) -> Tensor:
        has_more = self.has_more or (self.in_training and self.training)
        return self.lstm(self.more(x) if has_more else x)[0]


@pytest.mark.filterwarnings("ignore::irc.calls.left.LeftToTorchWarning")
@pytest.mark.parametrize("has_more", [False, True])
def test_what_has_no_graph_is_called_without_dynamo(has_more: bool) -> None:
    module = Recurrent()
    module.has_more = has_more
    run, x = irc.compile(module), torch.randn(3, 2, 4)
    for count in range(1, 6):
        module.zero_grad()
        run(x).sum().backward()
        own = [weight.grad.clone() for weight in module.parameters() if weight.grad is not None]
        module.zero_grad()
        module(x).sum().backward()
        for one, weight in zip(own, module.parameters(), strict=True):
            torch.testing.assert_close(one, weight.grad)
        is_handed = "there is no graph that irc has compiled" in str(irc.explain(run))
        assert is_handed == (count >= trial.LEAST_CALLS and not has_more)
    assert run(torch.randn(5, 2, 4)).shape == (5, 2, 4)  # calls of other kinds have their own way
    module.has_more = True
    assert torch.allclose(run(x), module(x))


@pytest.mark.filterwarnings("ignore::irc.calls.left.LeftToTorchWarning")
@pytest.mark.parametrize("change", ["mode", "attribute", "stance"])
def test_calls_that_have_a_graph_by_now_are_compiled(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handed, "FIRST_LOOK", 2)
    torch._dynamo.reset()
    counters.clear()
    module = Recurrent()
    run, x = irc.compile(module), torch.randn(3, 2, 4)
    module.eval()
    module.in_training = change == "mode"
    module.has_more = change == "stance"
    stance = "force_eager" if change == "stance" else "default"
    with torch.compiler.set_stance(stance):
        for _ in range(trial.LEAST_CALLS + 1):
            run(x).sum().backward()
    assert not counters["graphs"]
    if change == "mode":
        module.train()
    module.has_more |= change == "attribute"
    for _ in range(4):
        torch.testing.assert_close(run(x), module(x))
    assert counters["graphs"] == 1


def test_dynamos_way_in_counts() -> None:
    """What gains less than that costs is left to torch, though the graph itself is faster."""
    entry, seconds = trial.Entry(), (30e-6, 32e-6)
    for _ in range(trial.LEAST_CALLS):
        with entry.watched() as notes:
            end = time.thread_time() + 1e-3
            while time.thread_time() < end:
                pass
            notes.append(trial.Note(seconds, is_left=False, inside_s=0.0))
    assert entry.is_behind(notes)
    assert not entry.is_behind([trial.Note((3e-3, 5e-3), is_left=False, inside_s=0.0)])
    assert not entry.is_behind([*notes, trial.Note(None, is_left=False, inside_s=0.0)])
    assert not entry.is_behind([])


@pytest.mark.usefixtures("_behind")
def test_a_module_that_is_frozen_runs_what_was_compiled() -> None:
    module = nn.Linear(64, 64).eval()
    run, x = irc.compile(module), torch.randn(32, 64)
    with torch.no_grad():
        wanted = module(x)
        assert torch.equal(run(x), wanted)
        assert statistics(run).left == 1
        irc.freeze(run)
        assert torch.allclose(run(x), wanted, atol=1e-6)
    assert statistics(run).left == 0


@pytest.mark.usefixtures("_behind")
def test_each_of_open_sizes_is_tried() -> None:
    run = irc.compile(lambda x: x.softmax(-1) + 1, dynamic=True)
    for rows in (4, 7, 4):
        x = torch.randn(rows, 8)
        assert torch.equal(run(x), x.softmax(-1) + 1)
    assert statistics(run).left == 2


@pytest.mark.usefixtures("_behind")
def test_whole_graphs_are_never_left() -> None:
    run = irc.compile(lambda x: x.sin(), fullgraph=True)
    run(torch.randn(8))
    assert statistics(run).left == 0


@pytest.mark.usefixtures("_behind")
def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trial.VARIABLE, "off")
    run = irc.compile(lambda x: x.sin())
    run(torch.randn(8))
    assert statistics(run).left == 0


@pytest.mark.usefixtures("_behind")
def test_an_error_in_a_trial_is_the_calls_own() -> None:
    def pick(table: Tensor, index: Tensor) -> Tensor:
        return table[index]

    run = irc.compile(pick)
    with pytest.raises(IrcError, match="index"):
        run(torch.randn(4), torch.tensor([7]))
    assert statistics(run).left == 0


@pytest.mark.usefixtures("_behind")
def test_arguments_that_share_memory_are_not_copied_for_a_trial() -> None:
    def swap(x: Tensor, y: Tensor) -> Tensor:
        x.copy_(y.flip(0))
        return x + y

    both = torch.arange(8.0)
    run = backend(swap)
    wanted = both.clone()
    swap(wanted, wanted)
    run(both, both)
    assert torch.equal(both, wanted)


@pytest.mark.usefixtures("_behind")
@pytest.mark.parametrize("grad", [False, True])
def test_torch_is_given_no_tensor_without_memory(grad: bool) -> None:
    """Of such a tensor torch's own kernels read what is not there."""
    module = nn.Linear(4, 3)
    run, x = irc.compile(module), torch.ones(2, 4)
    with torch.set_grad_enabled(grad):
        run(x)
        gone = torch.ones(2, 4)
        gone.untyped_storage().resize_(0)
        for _ in range(2):
            with pytest.raises(IrcError, match="no-memory"):
                run(gone)
        assert torch.equal(run(x), module(x))
        module.weight.untyped_storage().resize_(0)
        with pytest.raises(IrcError, match="no-memory"):
            run(x)
