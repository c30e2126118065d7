"""`homenode chat` on a terminal, where words are wrapped and keys do what they say, and in a pipe, where answers are
alone.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from homenode.cli.generation.chat import _answer
from homenode.engine.api.completion import Completion, Timings
from homenode.model.hub.locate import BUILTIN_NAME
from homenode.sampling import SamplingParams
from tests.engine.live import BUILTIN
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(not BUILTIN.is_file(), reason="no built-in model")

_COMMAND = (sys.executable, "-m", "homenode", "chat", "--temperature", "0", "--threads", "1")
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[=>78])|[\x01\x02]")
_COLUMNS = 40
_FIGURES = r"\d+ tokens?(?:, [\d.]+ tokens/s)?, the first after"


class Terminal:
    """The command on a pseudo terminal."""

    def __init__(self, *flags: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, _COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(_COLUMNS)}
        self.process = subprocess.Popen(
            [*_COMMAND, *flags],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.SIG_DFL
            ),  # ignored where the tests run in the background of a shell
        )
        os.close(slave)
        self._text = ""

    def read_to(self, pattern: str) -> str:
        """What comes up to and with the pattern; what follows it is left for the next call."""
        found = wait_until(lambda: self._found(pattern) or self._read(), lambda: self._text, every_s=0)
        assert found is not None
        self._text = found.string[found.end() :]
        return found.string[: found.end()]

    def type(self, text: str) -> None:
        """Type it, once lines are edited by the program and not by the terminal, as they are when it asks."""
        wait_until(lambda: not termios.tcgetattr(self._master)[3] & termios.ICANON, lambda: self._text)
        os.write(self._master, text.encode())

    def interrupt(self, pattern: str) -> str:
        """Ctrl-C, and what comes up to the pattern. Again after a second: CPython's `input` may miss one that comes
        while it handles a key.
        """
        next_one = 0.0

        def comes() -> bool:
            nonlocal next_one
            if self._found(pattern):
                return True
            if time.monotonic() >= next_one:
                self.process.send_signal(signal.SIGINT)
                next_one = time.monotonic() + 1
            self._read()
            return False

        wait_until(comes, lambda: self._text, every_s=0)
        return self.read_to(pattern)

    def end(self) -> int:
        """Its exit code, once it has ended by itself."""
        wait_until(lambda: self.process.poll() is not None or self._read(), lambda: self._text, every_s=0)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _found(self, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, _ESCAPES.sub("", self._text))

    def _read(self) -> None:
        ready, _, _ = select.select([self._master], [], [], 0.1)
        if ready:
            try:
                self._text += os.read(self._master, 1 << 16).decode()
            except OSError:  # the other end is closed
                self.process.wait(PATIENCE_S)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.close()


def piped(text: bytes, *flags: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*_COMMAND, *flags], input=text, capture_output=True, timeout=PATIENCE_S)


def test_a_conversation_on_a_terminal(terminal: Terminal) -> None:
    banner = terminal.read_to("you ")
    assert BUILTIN_NAME in banner
    assert re.search(r"context of \d+ tokens", " ".join(banner.split()))
    terminal.type("What is NUMA?\n")
    answer = terminal.read_to(_FIGURES.replace(" ", r"\s+")).replace("\r", "")
    assert "NUMA means non-uniform memory access." in " ".join(answer.split())
    # The log, which tells of CPUs that are taken away, is not wrapped.
    printed = [line for line in answer.split("\n") if not line.startswith("homenode: warning: ")]
    assert max(map(len, printed)) <= _COLUMNS
    terminal.read_to("you ")
    for line, told in (
        ("/rest", r"did\s+you\s+mean\s+/reset"),
        ("/reset", r"a\s+new\s+conversation"),
        ("/help", "/exit"),
    ):
        terminal.type(line + "\n")
        assert "tokens/s" not in terminal.read_to(told)
    terminal.type("/exit\n")
    assert terminal.end() == 0


def test_control_c_empties_the_line_and_control_d_ends(terminal: Terminal) -> None:
    terminal.read_to("you ")
    terminal.type("half a quest")
    terminal.read_to("half a quest")
    terminal.interrupt("Ctrl-D ends[\\s\\S]*you ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_a_pipe_gets_answers_only_and_standard_error_the_rest() -> None:
    ran = piped(b"What is NUMA?\n\n/reset\nWhat is 2 + 3?\n")
    assert ran.returncode == 0
    first, second = ran.stdout.decode().splitlines()
    assert first.startswith("NUMA means")
    assert "5" in second
    told = ran.stderr.decode()
    assert len(re.findall(_FIGURES, told)) == 2
    assert BUILTIN_NAME in told
    assert "a new conversation begins" in told


@pytest.mark.parametrize(("asked", "code"), [(b"\xff\xfe What is NUMA?\n", 0), (b"", 0), (b"word " * 5000, 2)])
def test_whatever_is_piped_ends_without_a_traceback(asked: bytes, code: int) -> None:
    ran = piped(asked)
    assert ran.returncode == code, ran.stderr
    assert b"Traceback" not in ran.stderr
    assert (b"homenode: error: " in ran.stderr) == (code == 2)


def test_what_is_logged_meanwhile_comes_after_the_answer(tmp_path: Any) -> None:
    """An engine that warns with every step, in the process of the command."""
    program = tmp_path / "warning_chat.py"
    program.write_text(
        "import logging, sys\n"
        "from homenode.cli.output import report\n"
        "from homenode.cli.main import main\n"
        "printed = report.print_piece\n"
        "def print_piece(piece):\n"
        "    printed(piece)\n"
        "    logging.getLogger('homenode.part').warning('too warm')\n"
        "report.print_piece = print_piece\n"
        "main(sys.argv[1:])\n"
    )
    for command in (("chat",), ("generate", "--chat", "--prompt", "What is NUMA?")):
        ran = subprocess.run(
            [sys.executable, str(program), *command, "--temperature", "0"],
            input="What is NUMA?\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        lines = ran.stdout.splitlines()
        warned = [number for number, line in enumerate(lines) if line == "homenode: warning: too warm"]
        answer = next(number for number, line in enumerate(lines) if line.startswith("NUMA means"))
        assert lines[answer].endswith("another node.")
        assert len(warned) == 5, ran.stdout
        assert min(warned) > answer


class InterruptedStream:
    """A stream in which Ctrl-C comes after some pieces."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces
        self.closed = False
        timings = Timings(time_to_first_token_s=0.25, total_s=0.5, tokens_per_second=10.0)
        self.completion = Completion("".join(pieces), [1] * len(pieces), [1], "abort", 0, timings)

    def __iter__(self) -> Iterator[str]:
        yield from self._pieces
        raise KeyboardInterrupt

    def close(self) -> None:
        self.closed = True


def test_control_c_stops_an_answer_and_keeps_what_came(capsys: pytest.CaptureFixture[str]) -> None:
    stream = InterruptedStream(["One", " two"])
    llm: Any = SimpleNamespace(stream_chat=lambda messages, params: stream)
    assert _answer(llm, SamplingParams(), []) == "One two"
    assert stream.closed
    out, err = capsys.readouterr()
    assert (out, err.strip()) == ("One two\n", "2 tokens, 10.0 tokens/s, the first after 0.25 s, stopped")
