"""Results that child processes compute are those of the caller, whoever computes them."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from irc.errors import IrcError
from irc.search import children
from irc.search.ahead import Ahead, num_ahead
from irc.search.children import most_processes


@pytest.fixture(autouse=True)
def _two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRC_PROCESSES", "2")
    monkeypatch.setattr("irc.search.children.CHILDREN.is_refused", False)
    alone_but_for(monkeypatch)


def alone_but_for(monkeypatch: pytest.MonkeyPatch, *threads: threading.Thread) -> None:
    """Leave out threads that other tests of this process have left behind."""
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), *threads])


@pytest.fixture
def ahead() -> Generator[Ahead]:
    with Ahead() as own:
        yield own


def here() -> int:
    pytest.fail("the caller computes it")


def test_a_child_computes_what_was_begun(ahead: Ahead) -> None:
    ahead.begin("a", os.getpid)
    assert ahead.take("a", here) != os.getpid()


def test_what_was_not_begun_is_computed_here(ahead: Ahead) -> None:
    assert ahead.take("a", os.getpid) == os.getpid()


def test_the_caller_computes_others_while_it_waits(ahead: Ahead) -> None:
    def late() -> int:
        time.sleep(0.5)
        return os.getpid()

    ahead.begin("late", late)
    ahead.begin("other", os.getpid)
    assert ahead.take("late", here) != os.getpid()
    assert ahead.take("other", here) == os.getpid()


def test_out_of_time_nothing_is_computed_that_nobody_asks_for() -> None:
    """While a child was waited for the caller went on with plans for later."""
    with Ahead(until=time.monotonic() + 0.2) as ahead:
        ahead.begin("late", lambda: time.sleep(0.5))
        ahead.begin("other", lambda: "ahead")
        time.sleep(0.2)
        ahead.begin("new", lambda: "ahead")
        ahead.take("late", here)
        asked = [ahead.take(key, lambda: "asked") for key in ("other", "new")]
    assert asked == ["asked", "asked"]


def test_errors_of_users_come_back_from_children(ahead: Ahead) -> None:
    def refused() -> int:
        raise IrcError("mesh-syntax", "no mesh", because=("a", "b"), help="another")

    ahead.begin("a", refused)
    with pytest.raises(IrcError, match="no mesh") as caught:
        ahead.take("a", here)
    assert (caught.value.because, caught.value.help) == (("a", "b"), "another")


@pytest.mark.parametrize(
    "fault",
    [
        lambda: 1 / 0,
        lambda: lambda: 0,
        lambda: os._exit(3),
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        lambda: sys.exit("said by the caller alone"),
    ],
)
def test_what_fails_in_a_child_is_computed_here(
    ahead: Ahead, fault: Callable[[], object], capfd: pytest.CaptureFixture[str]
) -> None:
    ahead.begin("a", fault)
    assert ahead.take("a", lambda: 3) == 3
    assert capfd.readouterr() == ("", "")


def test_a_child_that_waits_for_ever_is_ended(
    ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "STUCK_S", 0.2)
    ahead.begin("a", lambda: time.sleep(600))
    start = time.monotonic()
    assert ahead.take("a", lambda: 3) == 3
    assert time.monotonic() - start < 30


def test_children_end_with_the_search_that_began_them() -> None:
    with Ahead() as ahead:
        ahead.begin("a", lambda: time.sleep(600))
        (child,) = multiprocessing.active_children()
        pid = child.pid
        assert pid is not None
        os.kill(pid, signal.SIGINT)  # an interrupt of the terminal is the parent's
        assert child.is_alive()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_children_begin_none_and_take_nothing_of_others(ahead: Ahead) -> None:
    def nested() -> tuple[int, int, int]:
        ahead.begin("b", os.getpid)
        return os.getpid(), ahead.take("b", os.getpid), ahead.take("a", os.getpid)

    ahead.begin("a", nested)
    assert len(set(ahead.take("a", lambda: (here(), 0, 0)))) == 1


@pytest.mark.parametrize(("name", "is_idle"), [("mine", False), ("irc-beside_0", True)])
def test_no_child_is_begun_beside_threads_of_others(
    ahead: Ahead, monkeypatch: pytest.MonkeyPatch, name: str, is_idle: bool
) -> None:
    goes_on = threading.Event()
    thread = threading.Thread(target=goes_on.wait, name=name)
    thread.start()
    alone_but_for(monkeypatch, thread)
    ahead.begin("a", os.getpid)
    goes_on.set()
    thread.join()
    assert (ahead.take("a", os.getpid) != os.getpid()) == is_idle


def test_processes_are_as_many_as_the_user_says(
    ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRC_PROCESSES", "1")
    ahead.begin("a", os.getpid)
    assert ahead.take("a", os.getpid) == os.getpid()
    assert num_ahead() == 0
    monkeypatch.delenv("IRC_PROCESSES")
    monkeypatch.setattr(children, "usable_cpus", lambda: range(8))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert most_processes() == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert most_processes() == 1
    for wrong in ("0", "many", "-1"):
        monkeypatch.setenv("IRC_PROCESSES", wrong)
        with pytest.raises(IrcError, match="IRC_PROCESSES") as caught:
            most_processes()
        assert caught.value.code == "option-value"


class BrokenError(Exception):
    """Can be pickled, and not read back."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("no number",)


def test_a_result_that_cannot_be_read_is_computed_here(ahead: Ahead) -> None:
    ahead.begin("a", BrokenError)
    assert ahead.take("a", lambda: 3) == 3
    ahead.begin("b", os.getpid)  # nor is any other child begun
    assert ahead.take("b", os.getpid) == os.getpid()


def test_what_a_child_warns_of_the_caller_warns_of(ahead: Ahead) -> None:
    def warned() -> int:
        warnings.warn("slow", UserWarning, stacklevel=1)
        return 3

    ahead.begin("a", warned)
    ahead.begin("b", warned)
    with pytest.warns(UserWarning, match="slow") as caught:
        assert ahead.take("a", here) == 3
    assert len(caught) == 1


def slow() -> int:
    warnings.warn("slow", UserWarning, stacklevel=1)
    return 3


def test_what_children_warn_of_is_said_once_for_its_place(ahead: Ahead) -> None:
    """Two stages of a pipeline said it twice."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for key in ("a", "b"):
            ahead.begin(key, slow)
            assert ahead.take(key, here) == 3
    assert [str(each.message) for each in caught] == ["slow"]


def test_what_children_warn_of_is_left_out_by_module(ahead: Ahead) -> None:
    """Filters saw the file's name in place of the module's."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", module=f"{__name__}$")
        ahead.begin("a", slow)
        assert ahead.take("a", here) == 3
    assert not caught


def test_without_room_for_a_pipe_all_is_computed_here(
    ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("multiprocessing.context.BaseContext.Pipe", full)
    ahead.begin("a", os.getpid)
    assert ahead.take("a", os.getpid) == os.getpid()


def test_an_interrupt_while_a_child_is_waited_for_ends_it(
    ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    ahead.begin("a", lambda: time.sleep(600))
    monkeypatch.setattr("irc.search.children.Child.outcome", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ahead.take("a", here)
    assert not multiprocessing.active_children()
    assert ahead.take("a", lambda: 3) == 3


def test_an_interrupt_while_a_child_begins_loses_none(
    ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knew of the child then, which went on for as long as the process."""
    start = BaseProcess.start

    def interrupted(self: BaseProcess) -> None:
        start(self)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(BaseProcess, "start", interrupted)
    # What a shell begins in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ahead.begin("a", lambda: time.sleep(600))
    finally:
        signal.signal(signal.SIGINT, before)
    ahead.end()
    assert not multiprocessing.active_children()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_without_room_for_a_process_no_other_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time file descriptors were left behind."""

    def full() -> int:
        raise BlockingIOError(errno.EAGAIN, "resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    before = open_files()
    for key in range(9):
        with Ahead() as ahead:
            ahead.begin(key, here)
            assert ahead.take(key, os.getpid) == os.getpid()
    assert open_files() <= before + 4


def test_what_children_print_is_there_with_their_results(
    ahead: Ahead, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They were ended before they had written it."""
    with (tmp_path / "out").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        for key in range(5):
            ahead.begin(key, lambda: print("a forward pass"))
            ahead.take(key, here)
    assert (tmp_path / "out").read_text() == 5 * "a forward pass\n"


def test_no_child_is_begun_beside_cuda(ahead: Ahead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    ahead.begin("a", os.getpid)
    assert ahead.take("a", os.getpid) == os.getpid()


def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, signal, sys, time\n"
        "from irc.search.ahead import Ahead\n"
        "def slow():\n"
        "    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "ahead = Ahead()\n"
        "ahead.begin('a', slow)\n"
        "while not os.path.exists(sys.argv[1]) or not pathlib.Path(sys.argv[1]).read_text():\n"
        "    time.sleep(0.01)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    note = tmp_path / "pid"
    subprocess.run([sys.executable, "-c", program, str(note)], check=False, timeout=60)
    status = Path(f"/proc/{note.read_text()}/status")
    ends = time.monotonic() + 10
    while status.exists() and "\nState:\tZ" not in status.read_text():
        assert time.monotonic() < ends
        time.sleep(0.02)
