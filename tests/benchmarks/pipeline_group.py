"""Processes that run one contender of a benchmark, stopped while others run."""

# pyright: basic
from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 600.0
"""How long a command may take; the longest is a compilation by Inductor on four processes."""
OTHERS_S = 3.0
"""How long others may take to say something after a rank that raised."""


class GroupFailedError(Exception):
    """A process of a group ended, raised, or did not answer; the group is closed."""


class Group:
    """Gloo processes of one thread each, which outlive the rows that they run.

    Args:
        ranks: how many.
        script: the file beside this one that each runs.
    """

    def __init__(self, ranks: int, script: str) -> None:
        self._folder = TemporaryDirectory()
        self._answers, answers = os.pipe()
        environment = {
            **os.environ,
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "IRC_STORE": f"{self._folder.name}/store",
            "IRC_RANK_TIMEOUT": "3600",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": str(ROOT),
            "ANSWERS": str(answers),
        }
        path = str(Path(__file__).with_name(script))
        self._processes = [
            subprocess.Popen(
                [sys.executable, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                pass_fds=[answers],
                text=True,
            )
            for rank in range(ranks)
        ]
        os.close(answers)
        self._unread = b""
        self._received("start")
        self._signal(signal.SIGSTOP)

    def ask(self, *command: object) -> list[Any]:
        """Let the processes run alone for one command, and return what each answers.

        Raises:
            GroupFailedError: with what the first that failed says.
        """
        self._signal(signal.SIGCONT)
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        answers = self._received(" ".join(map(str, command)))
        self._signal(signal.SIGSTOP)
        return answers

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()
        os.close(self._answers)
        self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)

    def _received(self, command: str) -> list[Any]:
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + DEADLINE_S
        while len(answers) < len(self._processes):
            if select.select([self._answers], [], [], 1.0)[0]:
                # Each line is written at once, and is shorter than what a pipe takes at once.
                *lines, self._unread = (self._unread + os.read(self._answers, 1 << 16)).split(b"\n")
                answers |= dict(map(json.loads, lines))
                if any(isinstance(a, dict) and "error" in a for a in answers.values()):
                    deadline = min(deadline, time.monotonic() + OTHERS_S)
            elif any(process.poll() is not None for process in self._processes):
                self._fail(f"{command}: a process ended")
            elif time.monotonic() > deadline:
                self._check(command, answers)
                waiting = [r for r in range(len(self._processes)) if r not in answers]
                self._fail(f"{command}: no answer of ranks {waiting} in {DEADLINE_S:.0f} s")
        self._check(command, answers)
        return [answers[rank] for rank in range(len(self._processes))]

    def _check(self, command: str, answers: dict[int, Any]) -> None:
        """Fail with what the first rank says that raised: it may be what others raised for."""
        for rank, answer in sorted(answers.items()):
            if isinstance(answer, dict) and "error" in answer:
                self._fail(f"{command}: rank {rank}: {answer['error']}")

    def _fail(self, why: str) -> None:
        self.close()
        raise GroupFailedError(why)


class Groups:
    """One group for each contender; one that failed begins again.

    Args:
        ranks: how many processes a group has.
        script: the file beside this one that they run.
    """

    def __init__(self, ranks: int, script: str = "pipeline_worker.py") -> None:
        self.ranks, self._script = ranks, script
        self._groups: dict[str, Group] = {}

    def ask(self, contender: str, *command: object) -> list[Any]:
        """Ask the group of a contender, which is started where it does not run.

        Raises:
            GroupFailedError: as :meth:`Group.ask` does; the next command starts another group.
        """
        if contender not in self._groups:
            self._groups[contender] = Group(self.ranks, self._script)
        try:
            return self._groups[contender].ask(*command)
        except GroupFailedError:
            del self._groups[contender]
            raise

    def drop(self, contender: str) -> None:
        """Let a contender's processes go of their steps, where there are any."""
        if contender in self._groups:
            self.ask(contender, "drop")

    def close(self) -> None:
        """End all groups."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()
