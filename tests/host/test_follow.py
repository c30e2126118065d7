"""Workers that a program starts itself are bound as they say who they are. The engine is a fake, its processes and
masks are real.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from homenode.errors import HostError
from homenode.host.bind.base.report import Report
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import identify
from homenode.host.bind.follow import Descendants, Follower, follow
from homenode.host.bind.rank_hints import RankHint
from tests.waiting import PATIENCE_S, wait_until

CPUS = sorted(os.sched_getaffinity(0))
ONE, OTHER = CPUS[0], CPUS[-1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

# Starts one child for each word, waits for a line, then lets every child take its word as its title: by writing over
# its arguments as setproctitle does, and by PR_SET_NAME (prctl(2)), which keeps 15 characters. Ends when its input
# does. `VAR=value` is environment instead.
ENGINE = """
import ctypes, os, subprocess, sys
CHILD = '''
import ctypes, sys
sys.stdin.readline()
title = sys.argv[1].encode()
if b"=" not in title:
    words = open("/proc/self/stat", "rb").read().rpartition(b")")[2].split()
    first, last = int(words[45]), int(words[46])
    with open("/proc/self/mem", "r+b", 0) as memory:
        memory.seek(first)
        memory.write(title.ljust(last - first, bytes(1)))
    ctypes.CDLL(None).prctl(15, title, 0, 0, 0)
sys.stdin.read()
'''
def start(word):
    name, equals, value = word.partition("=")
    environment = {**os.environ, name: value} if equals else None
    return subprocess.Popen([sys.executable, "-c", CHILD, word], stdin=subprocess.PIPE, env=environment)
children = [start(word) for word in sys.argv[1:]]
print(*[child.pid for child in children], flush=True)
sys.stdin.readline()
for child in children:
    child.stdin.write(b"\\n")
    child.stdin.flush()
sys.stdin.read()
for child in children:
    child.kill()
    child.wait()
"""


def _mask(pid: int) -> set[int]:
    return set(os.sched_getaffinity(pid))


def _title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 1)[0].decode()


def _has_ended(pid: int) -> bool:
    try:
        # Some inits take long to reap what they adopt.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@contextmanager
def _engine(*words: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A fake engine whose children have taken their titles."""
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as engine:
        assert engine.stdin and engine.stdout
        pids = [int(word) for word in engine.stdout.readline().split()]
        # Who starts a program may go on before the program's words and variables can be read.
        wait_until(
            lambda: all(Path(f"/proc/{pid}/environ").read_bytes() for pid in pids), "the children have no variables"
        )
        yield engine, pids
        engine.stdin.close()
        engine.wait(PATIENCE_S)


def _name_them(engine: subprocess.Popen[str], pids: list[int], titles: list[str]) -> None:
    assert engine.stdin
    engine.stdin.write("\n")
    engine.stdin.flush()
    wait_until(lambda: [_title(pid) for pid in pids] == titles, "the children did not take their titles")


def _bind(pid: int, target: Target) -> Report:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), target.cpus)
    return Report()


def _target_of(hint: RankHint) -> Target | None:
    rank = hint.tensor_parallel if hint.local_rank is None else hint.local_rank
    return None if rank is None else Target((CPUS[rank % len(CPUS)],))


def test_workers_are_bound_when_they_say_who_they_are_and_others_left() -> None:
    titles = ["VLLM::Worker_TP1", "VLLM::Worker_TP0", "VLLM::APIServer_0"]
    with _engine(*titles) as (engine, pids):
        follower = Follower(identify(engine.pid), _target_of, _bind, pytest.fail)
        follower.scan()
        assert [_mask(pid) for pid in pids] == [set(CPUS)] * 3, "nobody has said yet who it is"
        _name_them(engine, pids, titles)
        assert Path(f"/proc/{pids[0]}/comm").read_text() == "VLLM::Worker_TP\n", "why thread names are not enough"
        assert follower.scan()
        assert [_mask(pid) for pid in pids] == [{CPUS[1 % len(CPUS)]}, {ONE}, set(CPUS)]
        assert not follower.scan(), "nothing has changed"


def test_ranks_in_the_environment_count_unless_the_program_itself_has_them() -> None:
    with _engine("LOCAL_RANK=1", "SLURM_LOCALID=1") as (engine, pids):
        assert Follower(identify(engine.pid), _target_of, _bind, pytest.fail).scan()
        assert [_mask(pid) for pid in pids] == [{CPUS[1 % len(CPUS)]}] * 2
    asked: list[RankHint] = []

    def nobody(hint: RankHint) -> None:
        asked.append(hint)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", "1")
        with _engine("VLLM::Worker_TP0") as (engine, _):
            Follower(identify(engine.pid), nobody, _bind, pytest.fail).scan()
    assert asked == []


def test_a_worker_that_takes_another_rank_is_bound_anew() -> None:
    with _engine("LOCAL_RANK=0") as (engine, pids):
        given: list[int] = []

        def target_of(hint: RankHint) -> Target:
            given.append(hint.local_rank or 0)
            return Target((ONE,))

        follower = Follower(identify(engine.pid), target_of, _bind, pytest.fail)
        follower.scan()
        follower._titles[identify(pids[0])] = (b"before", RankHint("worker", 5))
        follower.scan()
        assert len(given) == 2


def test_a_refused_worker_is_said_once_and_the_others_are_bound() -> None:
    with _engine("LOCAL_RANK=0", "LOCAL_RANK=1") as (engine, pids):
        said: list[str] = []

        def bind(pid: int, target: Target) -> Report:
            if pid == pids[0]:
                raise HostError("no")
            return _bind(pid, target)

        follower = Follower(identify(engine.pid), _target_of, bind, said.append)
        follower.scan()
        follower.scan()
        assert said == [f"process {pids[0]} is not bound: no"]
        assert _mask(pids[1]) == {CPUS[1 % len(CPUS)]}


# A program with one worker, which starts a thread with each name that it reads; a name behind "=" is given to the
# latest thread instead.
NAMING = """
import os, subprocess, sys
CHILD = '''
import ctypes, os, sys, threading
def work(name, named):
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
    named.set()
    threading.Event().wait()
print(os.getpid(), flush=True)
for line in sys.stdin:
    if line[0] == "=":
        with open(f"/proc/self/task/{thread.native_id}/comm", "w") as name:
            name.write(line[1:].strip())
    else:
        named = threading.Event()
        thread = threading.Thread(target=work, args=(line.strip(), named), daemon=True)
        thread.start()
        named.wait()
    print("named", flush=True)
'''
child = subprocess.Popen([sys.executable, "-c", CHILD], env={**os.environ, "LOCAL_RANK": "0"})
child.wait()
"""


@contextmanager
def _worker_with_names() -> Iterator[tuple[Follower, list[int], Callable[[str], None]]]:
    """A follower of such a program, the workers it has bound so far, and how to give the worker a thread."""
    with subprocess.Popen(
        [sys.executable, "-c", NAMING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin and program.stdout
        worker, seen = int(program.stdout.readline()), list[int]()

        def bind(pid: int, target: Target) -> Report:
            assert pid == worker
            seen.append(pid)
            return Report()

        def name(line: str) -> None:
            assert program.stdin and program.stdout
            program.stdin.write(f"{line}\n")
            program.stdin.flush()
            assert program.stdout.readline() == "named\n"

        yield (
            Follower(identify(program.pid), lambda hint: Target((ONE,), {"acl_thread": (OTHER,)}), bind, pytest.fail),
            seen,
            name,
        )
        program.communicate()


def test_threads_with_a_role_that_come_later_bring_the_worker_up_again_and_others_do_not() -> None:
    with _worker_with_names() as (follower, seen, name):
        follower.scan()
        assert len(seen) == 1
        for line, times in (("python-pool", 1), ("acl_thread", 2), ("worker-7", 2), ("acl_thread_1", 3)):
            name(line)
            follower.scan()
            follower.scan()
            assert len(seen) == times, line


def test_a_thread_is_looked_at_twice_as_it_is_born_before_it_is_named() -> None:
    with _worker_with_names() as (follower, seen, name):
        follower.scan()
        name("python")
        follower.scan()
        assert len(seen) == 1
        name("=acl_thread")
        follower.scan()
        assert len(seen) == 2


def test_descendants_are_found_kept_as_orphans_and_dropped_when_they_end() -> None:
    code = (
        "import subprocess, sys; child = subprocess.Popen(['sh', '-c', 'sleep 60 & echo $!; read line; exit 0'], "
        "stdin=0); child.wait(); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as root:
        assert root.stdin and root.stdout
        grandchild = int(root.stdout.readline())
        tree = Descendants(identify(root.pid))
        before = tree.scan()
        assert grandchild in [process.pid for process in before] and len(before) == 2
        assert root.pid not in [process.pid for process in before]
        root.stdin.write("\n")
        root.stdin.flush()
        wait_until(
            lambda: [process.pid for process in tree.scan()] == [grandchild], "the shell is gone, what it started stays"
        )
        os.kill(grandchild, 9)
        wait_until(lambda: not tree.scan(), "nobody is left")
        root.stdin.close()


def test_strangers_are_no_descendants() -> None:
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as root,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other,
    ):
        tree = Descendants(identify(root.pid))
        assert other.pid not in [process.pid for process in tree.scan()]
        root.communicate()
        other.communicate()


@pytest.mark.parametrize("with_pidfd", [True, False], ids=["pidfd", "start time"])
def test_following_ends_with_the_program(with_pidfd: bool) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as program:
        follower = Follower(identify(program.pid), _target_of, _bind, pytest.fail)
        pidfd = os.pidfd_open(program.pid) if with_pidfd else None
        try:
            program.kill()
            begin = time.monotonic()
            follow(follower, pidfd, until=begin + PATIENCE_S)
            assert time.monotonic() - begin < PATIENCE_S / 2
        finally:
            if pidfd is not None:
                os.close(pidfd)


# Leaves a follower that notes who it is, then becomes the engine.
LAUNCHER = """
import os, sys
from pathlib import Path
from homenode.host.bind.follow import Follower, follow
from homenode.host.bind.launch import run_bound
from homenode.host.bind.base.report import Report
from homenode.host.bind.sidecar import start_sidecar, to_stderr
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import identify
note, cpus, engine, *words = sys.argv[1:]
cpus = [int(cpu) for cpu in cpus.split(",")]
def bind(pid, target):
    Path(note).write_text(f"{os.getpid()} {sorted(os.listdir('/proc/self/fd'))}")
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), target.cpus)
    return Report()
target_of = lambda hint: Target((cpus[hint.tensor_parallel % len(cpus)],))
follower = Follower(identify(os.getpid()), target_of, bind, to_stderr)
start_sidecar(lambda pidfd: follow(follower, pidfd))
run_bound(Target(tuple(cpus)), [sys.executable, "-c", engine, *words])
"""


def test_a_program_started_with_a_follower_has_its_workers_bound_and_leaves_nothing_behind(tmp_path: Path) -> None:
    note, titles = tmp_path / "follower", ["VLLM::Worker_TP0", "VLLM::Worker_TP1"]
    command = [sys.executable, "-c", LAUNCHER, str(note), ",".join(map(str, CPUS)), ENGINE, *titles]
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": ENVIRONMENT,
    }
    with subprocess.Popen(command, **pipes) as engine:  # type: ignore[call-overload]
        pids = [int(word) for word in engine.stdout.readline().split()]
        _name_them(engine, pids, titles)
        wait_until(
            lambda: [_mask(pid) for pid in pids] == [{ONE}, {CPUS[1 % len(CPUS)]}],
            "the follower did not bind the workers",
        )
        number, _, descriptors = note.read_text().partition(" ")
        follower = int(number)
        assert follower != engine.pid and os.getsid(follower) != os.getsid(0)
        assert len(descriptors.split(",")) <= 5, f"it holds what is not its own: {descriptors}"
        children = Path(f"/proc/{engine.pid}/task/{engine.pid}/children")
        assert not children.exists() or sorted(map(int, children.read_text().split())) == sorted(pids), (
            "the program has a child it does not know"
        )
        out, err = engine.communicate(timeout=PATIENCE_S)
        assert (engine.returncode, out, err) == (0, "", "")
        wait_until(lambda: _has_ended(follower), "the follower outlived the program")
