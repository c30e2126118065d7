"""The processes in which chat templates are rendered: they are limited, they end when they should, and are replaced."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from homenode.errors import CapacityError, HomenodeError, HostError, OverloadedError, UserError
from homenode.model.sandbox.process import SandboxProcess
from homenode.model.sandbox.renderer import TemplateRenderer
from homenode.model.sandbox.template_process import MEMORY_BYTES
from homenode.model.tokenizer.chat import ChatTemplate
from tests.waiting import wait_until

HI = [{"role": "user", "content": "hi"}]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}x"
ENDLESS = {
    "loops": LOOP,
    "macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "power in one step": "{{ (messages | length * 9) ** (10 ** 9) }}",
}
DOUBLING = (
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
)


def children() -> set[int]:
    """The processes that this one has started, and that have not ended."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread or a process that ends meanwhile
            for pid in (task / "children").read_text().split():
                if "template_process" in Path(f"/proc/{pid}/cmdline").read_text():
                    found.add(int(pid))
    return found


def wait_for_end(pid: int, seconds: float) -> bool:
    """Whether a process, of this one or not, ends in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    ended = bool(waiting.poll(seconds * 1000))
    os.close(descriptor)
    return ended


@pytest.mark.alone
@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_rendering_without_end_is_ended_and_others_go_on(source: str) -> None:
    renderer = TemplateRenderer(timeout_s=1.0)
    endless, plain = ChatTemplate(source, {}, renderer), ChatTemplate("{{ messages[0].content }}", {}, renderer)
    before = children()
    errors: list[HomenodeError] = []

    def ask() -> None:
        try:
            endless.render(HI)
        except HomenodeError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert [plain.render(HI) for _ in range(3)] == ["hi"] * 3
    asking.join(20)
    assert [type(error) for error in errors] == [CapacityError]
    assert "within 1 s (--chat-template-timeout)" in errors[0].message
    assert plain.render(HI) == "hi"
    assert before - children() == before  # the process that did not come back has been ended
    renderer.close()
    assert not children() & before


@pytest.mark.parametrize("source", [DOUBLING, "{% set x = messages[0].content * 10 ** 10 %}{{ x | length }}"])
def test_memory_has_a_limit(source: str) -> None:
    with pytest.raises(UserError, match=r"takes more than 1024 MiB|gave more than|process that renders it was lost"):
        ChatTemplate(source, {}, TemplateRenderer(timeout_s=60.0)).render(HI)


@pytest.mark.alone
def test_who_waits_too_long_is_told_to_come_again() -> None:
    """Of many renderings without end some are ended at their deadline; for the others there was never a process, and
    they wait no longer than that.
    """
    renderer = TemplateRenderer(timeout_s=1.0)
    template = ChatTemplate(LOOP, {}, renderer)
    kinds: list[type[HomenodeError]] = []

    def ask() -> None:
        try:
            template.render(HI)
        except HomenodeError as error:
            kinds.append(type(error))

    asking = [threading.Thread(target=ask) for _ in range(12)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(30)
    assert len(kinds) == 12
    assert set(kinds) == {CapacityError, OverloadedError}


@pytest.mark.alone
def test_who_waits_while_a_process_starts_does_not_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting may take many times as long as a rendering, on a machine that others keep busy."""
    begin = SandboxProcess.wait_ready

    def slow(self: SandboxProcess) -> None:
        time.sleep(0.7)
        begin(self)

    monkeypatch.setattr(SandboxProcess, "wait_ready", slow)
    renderer = TemplateRenderer(timeout_s=0.6)
    template = ChatTemplate("{{ messages[0].content }}", {}, renderer)
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: template.render([{"role": "user", "content": str(n)}]), range(8)))
    assert texts == [str(n) for n in range(8)]
    renderer.close()


def test_a_process_that_was_killed_is_replaced() -> None:
    before = children()
    template = ChatTemplate("{{ messages[0].content }}", {})
    for _ in range(3):
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)
            assert wait_for_end(pid, 10)
        assert template.render(HI) == "hi"


def test_it_has_limits_no_secrets_and_no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """And from its start no more than one thread of any library."""
    monkeypatch.setenv("HOMENODE_API_KEY", "a secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    before = children()
    with Path("/dev/null").open() as file:
        os.set_inheritable(file.fileno(), True)
        template = ChatTemplate("x", {})
        (pid,) = children() - before
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert f"Max address space         {MEMORY_BYTES}" in limits
        assert "Max core file size        0" in limits
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
        assert "a secret" not in "".join(variables)
        for library in ("OPENBLAS", "OMP", "MKL", "RAYON"):
            assert [v for v in variables if v.startswith(f"{library}_NUM_")] == [f"{library}_NUM_THREADS=1"]
        assert len(list(Path(f"/proc/{pid}/fd").iterdir())) == 4  # the three standard ones, and its socket
    assert template.render(HI) == "x"


def test_a_process_that_cannot_start_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    with pytest.raises(HostError, match="could not be started: it ended by exit code 1"):
        ChatTemplate("x", {})


def test_a_fork_leaves_its_parents_process_alone() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    before = children()
    if (pid := os.fork()) == 0:
        template._renderer.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert template.render(HI) == "hi"
    assert children() == before


PARENT = f"""
import os, signal, sys, threading, time
from pathlib import Path
from homenode.model.tokenizer.chat import ChatTemplate
from homenode.model.sandbox.renderer import TemplateRenderer

def begin():  # in a thread that ends, as the child is the process's, not the thread's
    global template
    template = ChatTemplate({LOOP!r}, {{}}, TemplateRenderer(timeout_s=600.0))

starting = threading.Thread(target=begin)
starting.start()
starting.join()
pids = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
print(*pids, flush=True)
if sys.argv[1] == "busy":
    template.render([])
signal.pause()
"""


@pytest.mark.parametrize("state", ["busy", "idle"])
def test_it_ends_with_its_parent_however_that_ends(state: str) -> None:
    """Also while it computes, where nobody reads the stream."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, state], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        (pid,) = map(int, parent.stdout.readline().split())
        if state == "busy":
            wait_until_busy(pid)
        parent.kill()
        parent.wait()
        assert wait_for_end(pid, 10)


def wait_until_busy(pid: int) -> None:
    """Waits until a process uses processor time, which it does when it has got its request."""
    first = _ticks(pid)
    wait_until(lambda: _ticks(pid) >= first + 5)


def _ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
