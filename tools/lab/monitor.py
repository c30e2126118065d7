"""qemu's monitor (QMP, docs/interop/qmp-spec.txt of qemu) and the guest's console, both over socket pairs and with
deadlines.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

from tools.lab.folder import LabError

READY = "@@lab ready"


class Console:
    """What the guest prints, read by a thread of its own so that the guest never waits for us."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._text = bytearray()
        self._news = threading.Condition()
        self._closed = False
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def text(self) -> str:
        with self._news:
            return self._text.decode(errors="replace")

    def wait_for(self, word: str, deadline: float) -> bool:
        """Whether the guest prints `word` before `deadline` (of time.monotonic) and before it ends."""
        wanted = word.encode()
        with self._news:
            while wanted not in self._text and not self._closed:
                if not self._news.wait(max(0.0, deadline - time.monotonic())):
                    return False
            return wanted in self._text

    def say(self, line: str) -> None:
        self._end.sendall(line.encode() + b"\n")

    def _read(self) -> None:
        while True:
            try:
                part = self._end.recv(65536)
            except OSError:
                part = b""
            with self._news:
                self._text += part
                self._closed = self._closed or not part
                self._news.notify_all()
            if not part:
                return


class Monitor:
    """Commands to qemu. LabError when it ends or does not answer."""

    def __init__(self, end: socket.socket, answer_s: float) -> None:
        end.settimeout(answer_s)
        self._end = end
        self._lines = end.makefile("r", encoding="utf-8")
        self._line()  # the greeting
        self.ask("qmp_capabilities")

    def ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        """The answer of a command; LabError with qemu's words when it refuses."""
        self._end.sendall(json.dumps({"execute": verb, "arguments": arguments}).encode() + b"\n")
        while True:
            answer = self._line()
            if "error" in answer:
                raise LabError(f"qemu refuses {verb}: {answer['error'].get('desc')}")
            if "return" in answer:
                found: dict[str, Any] = answer["return"]
                return found

    def save(self, file: Path, deadline: float) -> None:
        """Stop the machine, write it to `file` and leave it stopped."""
        self.ask("stop")
        self.ask("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        self.ask("migrate", uri=f"exec:cat > '{file}'")
        while (status := self.ask("query-migrate").get("status")) != "completed":
            if status in ("failed", "cancelled"):
                raise LabError(f"qemu could not save the machine: {status}")
            self._pause(deadline)

    def resume(self, deadline: float) -> None:
        """Let a machine go on that was saved while stopped, as soon as it has been read back."""
        reading = ("inmigrate", "prelaunch")
        while self.ask("query-status")["status"] in reading:
            self._pause(deadline)
        self.ask("cont")

    def _pause(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise LabError("qemu was too slow to save or to read back a machine")
        time.sleep(0.01)

    def _line(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except OSError as error:
            raise LabError(f"qemu does not answer: {error}") from None
        if not line:
            raise LabError("qemu has ended")
        found: dict[str, Any] = json.loads(line)
        return found
