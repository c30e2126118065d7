"""Programs run bound: what /proc says of them, what ends them, and what is refused before they start."""

from __future__ import annotations

import errno
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from homenode.errors import HostError, PlacementError
from homenode.host.bind.base.syscalls import NUMBERS, Syscalls
from homenode.host.bind.base.target import Target
from homenode.host.bind.launch import ProgramError, bind_self, check_allowed, find_program
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.source import RecordedSource

CPUS = sorted(os.sched_getaffinity(0))
ONE, OTHER = CPUS[0], CPUS[-1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
CGROUPS = Path("/sys/fs/cgroup")
CPUSET_V1 = CGROUPS / "cpuset"
needs_two = pytest.mark.skipif(len(CPUS) < 2, reason="needs two allowed CPUs")

# A launcher: CPUs, memory nodes and "strict" or "loose" as words, then the program. Refusals end as the command line's
# do.
LAUNCHER = """
import sys
from homenode.cpuset import parse_cpu_list
from homenode.errors import HomenodeError, UserError
from homenode.host.bind.launch import ProgramError, run_bound
from homenode.host.bind.base.target import Target
cpus, nodes, mode, *argv = sys.argv[1:]
try:
    run_bound(Target(parse_cpu_list(cpus), {}, parse_cpu_list(nodes)) if cpus != "none" else None, argv, strict=mode == "strict")
except HomenodeError as error:
    print(error.message, file=sys.stderr)
    sys.exit(error.exit_code if isinstance(error, ProgramError) else 2 if isinstance(error, UserError) else 1)
"""


def _command(cpus: object, *argv: str, nodes: str = "", mode: str = "loose") -> list[str]:
    return [sys.executable, "-c", LAUNCHER, str(cpus), nodes, mode, *argv]


def _run(
    cpus: object, *argv: str, nodes: str = "", mode: str = "loose", before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, *_command(cpus, *argv, nodes=nodes, mode=mode)],
        capture_output=True,
        text=True,
        timeout=30,
        env=ENVIRONMENT,
        check=False,
    )


def _mask(status: str) -> str:
    found = re.search(r"^Cpus_allowed_list:\t(\S+)$", status, re.MULTILINE)
    assert found, status
    return found[1]


def _node() -> str:
    found = re.search(r"^Mems_allowed_list:\t(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        pytest.skip("this kernel has no NUMA nodes")
    return found[1]


@pytest.mark.parametrize("cpu", {ONE, OTHER})
def test_the_program_has_exactly_the_mask(cpu: int) -> None:
    done = _run(cpu, "cat", "/proc/self/status")
    assert _mask(done.stdout) == str(cpu)
    assert done.stderr == ""


def test_the_program_has_exactly_the_memory_policy() -> None:
    node = _node()
    done = _run(ONE, "cat", "/proc/self/numa_maps", nodes=node)
    if "memory_policy" in done.stderr or "set_mempolicy" in done.stderr:
        pytest.skip(f"set_mempolicy is refused here: {done.stderr}")
    assert {line.split()[1] for line in done.stdout.splitlines()} >= {f"bind:{node}"}


def test_without_memory_nodes_memory_is_left_alone() -> None:
    done = _run(ONE, "cat", "/proc/self/numa_maps")
    assert not re.search(r"^\w+ (bind|prefer)", done.stdout, re.MULTILINE)


def test_children_of_the_program_inherit_both() -> None:
    done = _run(ONE, "sh", "-c", "cat /proc/self/status; true", nodes=_node())
    assert _mask(done.stdout) == str(ONE)


def test_no_target_runs_unbound() -> None:
    assert os.sched_getaffinity(0) == set(CPUS)
    done = _run("none", sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))")
    assert done.stdout == f"{CPUS}\n"


@pytest.mark.parametrize("code", [0, 1, 2, 7, 126, 127, 255])
def test_the_exit_code_is_the_programs(code: int) -> None:
    assert _run(ONE, sys.executable, "-c", f"import sys; sys.exit({code})").returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_the_signal_that_ends_the_program_is_seen(number: int) -> None:
    assert _run(ONE, "sh", "-c", f"kill -{number} $$").returncode == -number


def test_a_broken_pipe_ends_the_program_as_it_would_without_us() -> None:
    """Python ignores SIGPIPE; a program must not inherit that."""
    done = _run(ONE, "grep", "SigIgn", "/proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored >> (number - 1) & 1


def test_the_program_keeps_the_number_arguments_and_environment() -> None:
    code = "import os, sys; print(os.getpid(), sys.argv[1:], os.environ['MARK'])"
    with subprocess.Popen(
        _command(ONE, sys.executable, "-c", code, "a b", "--", ""),
        stdout=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "MARK": "m"},
    ) as started:
        out, _ = started.communicate(timeout=30)
    assert out == f"{started.pid} ['a b', '--', ''] m\n"


def test_a_cpu_that_is_not_there_is_named() -> None:
    done = _run(4095, "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "CPU 4095 is not on this machine" in done.stderr and "Traceback" not in done.stderr


def test_a_cpu_beyond_those_there_are_refuses_the_others_too() -> None:
    """The kernel alone would silently run it on the ones that are there."""
    done = _run(f"{ONE},4095", "true")
    assert done.returncode == 2 and "CPU 4095" in done.stderr


def test_a_node_that_is_not_there_is_named() -> None:
    done = _run(ONE, "true", nodes="777")
    assert done.returncode == 2 and "NUMA node 777 is not on this machine" in done.stderr


def test_no_cpus_at_all_are_refused() -> None:
    done = _run("", "true")
    assert done.returncode == 2 and "no CPUs" in done.stderr


@needs_two
def test_an_inherited_mask_is_not_widened() -> None:
    done = _run(OTHER, "cat", "/proc/self/status", before=("taskset", "-c", str(ONE)))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"CPU {OTHER} is outside the CPUs that this process has inherited" in done.stderr


@needs_two
def test_an_inherited_mask_is_not_widened_partly_either() -> None:
    done = _run(f"{ONE},{OTHER}", "true", before=("taskset", "-c", str(ONE)))
    assert done.returncode == 2 and "inherited" in done.stderr


@contextmanager
def _cpusets() -> Iterator[tuple[Path, str]]:
    """A hierarchy whose groups can have a cpuset of their own, version 1 or 2, and the file that takes processes into a
    group.
    """
    if os.access(CPUSET_V1 / "cpuset.cpus", os.W_OK):
        yield CPUSET_V1, "tasks"
        return
    control = CGROUPS / "cgroup.subtree_control"
    try:
        was_on = "cpuset" in control.read_text().split()
        control.write_text("+cpuset")
    except OSError as error:
        pytest.skip(f"cannot make a cpuset here: {error}")
    try:
        yield CGROUPS, "cgroup.procs"
    finally:
        if not was_on:
            control.write_text("-cpuset")


@pytest.fixture
def cpuset() -> Iterator[Path]:
    """The file that takes a process into a cgroup that allows CPU ONE only; gone afterwards."""
    with _cpusets() as (root, processes):
        folder = root / f"test-{os.getpid()}"
        folder.mkdir()
        try:
            (folder / "cpuset.mems").write_text(_node())
            (folder / "cpuset.cpus").write_text(str(ONE))
            yield folder / processes
        finally:
            folder.rmdir()


@needs_two
def test_a_cpuset_is_not_widened_and_is_named(cpuset: Path) -> None:
    inside = ("sh", "-c", f'echo $$ > {cpuset} && exec "$@"', "sh")
    refused = _run(OTHER, "true", before=inside)
    assert refused.returncode == 2
    assert "inherited from its cpuset" in refused.stderr
    allowed = _run(ONE, "cat", "/proc/self/status", nodes=_node(), before=inside)
    assert _mask(allowed.stdout) == str(ONE)


def test_a_program_that_is_not_there() -> None:
    done = _run(ONE, "/no/such/program")
    assert (done.returncode, done.stderr) == (127, "/no/such/program: there is no such file\n")


def test_a_program_that_is_not_in_path() -> None:
    done = _run(ONE, "no-such-program-anywhere")
    assert done.returncode == 127 and done.stderr.startswith("no-such-program-anywhere: ")


@pytest.mark.parametrize(
    ("content", "mode", "code", "said"),
    [
        ("#!/bin/sh\nexit 9\n", 0o755, 9, ""),
        ("#!/bin/sh\nexit 9\n", 0o644, 126, "may not be executed"),
        ("#!/no/such/interpreter\n", 0o755, 127, "interpreter in its first line"),
        ("neither program nor script\n", 0o755, 126, "no program for this machine"),
    ],
    ids=["script", "not executable", "interpreter missing", "no program"],
)
def test_files_that_are_programs_or_not(tmp_path: Path, content: str, mode: int, code: int, said: str) -> None:
    file = tmp_path / "program"
    file.write_text(content)
    file.chmod(mode)
    done = _run(ONE, str(file))
    assert done.returncode == code
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_folder_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="is a folder") as refused:
        find_program(str(tmp_path), os.environ)
    assert refused.value.exit_code == 126


def test_path_is_searched_in_order_and_passes_over_what_cannot_be_run(tmp_path: Path) -> None:
    for name, mode in (("first", 0o644), ("second", 0o755), ("third", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").write_text("#!/bin/sh\n")
        (tmp_path / name / "tool").chmod(mode)
    path = os.pathsep.join(str(tmp_path / name) for name in ("missing", "first", "second", "third"))
    assert find_program("tool", {"PATH": path}) == str(tmp_path / "second" / "tool")
    with pytest.raises(ProgramError, match="may not be executed") as refused:
        find_program("tool", {"PATH": f"{tmp_path / 'missing'}:{tmp_path / 'first'}"})
    assert refused.value.exit_code == 126


def test_folders_that_may_not_be_looked_into_are_passed_over(tmp_path: Path) -> None:
    """PATH of a service user often names folders of another's home."""
    secret, open_to_all = tmp_path / "secret", tmp_path / "open"
    for folder in (secret, open_to_all):
        folder.mkdir()
        (folder / "tool").write_text("#!/bin/sh\n")
        (folder / "tool").chmod(0o755)
    reachable = os.open(open_to_all, os.O_PATH)
    secret.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        found = find_program("tool", {"PATH": f"{secret}:/proc/self/fd/{reachable}"})
        with pytest.raises(ProgramError, match="no such program in PATH") as missing:
            find_program("tool", {"PATH": str(secret)})
        with pytest.raises(ProgramError, match="may not look into its folder") as refused:
            find_program(f"{secret}/tool", {})
    finally:
        os.seteuid(user)
        os.close(reachable)
    assert found == f"/proc/self/fd/{reachable}/tool"
    assert (missing.value.exit_code, refused.value.exit_code) == (127, 126)


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ProgramError):
        find_program(name, os.environ)


class RefusingKernel(Syscalls):
    """A kernel that refuses affinity, or that cuts it to one CPU without a word."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def set_affinity(self, tid: int, cpus: object) -> None:
        if self.code:
            raise OSError(self.code, os.strerror(self.code))

    def affinity(self, tid: int) -> tuple[int, ...]:
        return (0,)


@pytest.mark.parametrize(("code", "said"), [(errno.EPERM, "sched_setaffinity: EPERM"), (0, "made CPUs 0-1 into 0")])
def test_refused_cpus_are_said_and_strict_ends_there(code: int, said: str) -> None:
    report = bind_self(Target((0, 1)), kernel=RefusingKernel(code))
    assert [(finding.severity, finding.code) for finding in report.findings] == [("error", "affinity_refused")]
    assert said in report.findings[0].message and not report.ok
    with pytest.raises(HostError, match=said):
        bind_self(Target((0, 1)), kernel=RefusingKernel(code), strict=True)


# Forbids the system calls whose numbers it is given, as a container's seccomp profile does (seccomp(2), EPERM), then
# executes the rest.
FORBIDDER = """
import ctypes, os, struct, sys
numbers = [int(number) for number in sys.argv[1].split(",")]
LOAD, EQUAL, RETURN, ALLOW, EPERM = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050001
steps = [(LOAD, 0, 0, 0)]
steps += [(EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, EPERM)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0, "no_new_privs"
if prctl(22, 2, program, 0, 0):
    sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
AFFINITY_NUMBERS = {"x86_64": 203, "aarch64": 122, "riscv64": 122}


def _forbidden(numbers: list[int], *command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", FORBIDDER, ",".join(map(str, numbers)), *command[1:]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, env=ENVIRONMENT, check=False)
    if done.stderr.startswith("seccomp:") or "no_new_privs" in done.stderr:
        pytest.skip(f"cannot make a seccomp filter here: {done.stderr}")
    return done


def test_a_container_that_forbids_memory_policies_still_gets_its_cpus() -> None:
    numbers = [NUMBERS[platform.machine()][name] for name in ("set_mempolicy", "get_mempolicy")]
    show = ("cat", "/proc/self/status", "/proc/self/numa_maps")
    done = _forbidden(numbers, *_command(ONE, *show, nodes=_node()))
    assert _mask(done.stdout) == str(ONE)
    assert not re.search(r"^\w+ (bind|prefer)", done.stdout, re.MULTILINE)
    assert (
        f"warning: the kernel refuses bind:{_node()}: set_mempolicy: EPERM" in done.stderr and "SYS_NICE" in done.stderr
    )
    strict = _forbidden(numbers, *_command(ONE, *show, nodes=_node(), mode="strict"))
    assert (strict.returncode, strict.stdout) == (1, "")
    assert "set_mempolicy: EPERM" in strict.stderr and "Traceback" not in strict.stderr


@pytest.mark.skipif(
    platform.machine() not in AFFINITY_NUMBERS, reason="the number of sched_setaffinity is not known here"
)
def test_a_container_that_forbids_affinity_runs_the_program_unbound_and_says_so() -> None:
    numbers = [AFFINITY_NUMBERS[platform.machine()]]
    done = _forbidden(numbers, *_command(ONE, "cat", "/proc/self/status"))
    assert "Cpus_allowed_list" in done.stdout and done.returncode == 0
    assert f"error: the kernel refuses CPUs {ONE}: sched_setaffinity: EPERM" in done.stderr
    strict = _forbidden(numbers, *_command(ONE, "true", mode="strict"))
    assert strict.returncode == 1 and "sched_setaffinity: EPERM" in strict.stderr


# A machine with CPUs 0-2 online of 0-3 and nodes 0 and 8, and a process that may use CPUs 0 and 1.
RECORDED = RecordedSource(
    "x86_64",
    {
        "/sys/devices/system/cpu/online": "0-2",
        "/sys/devices/system/cpu/present": "0-3",
        "/sys/devices/system/node/online": "0,8",
        "/proc/self/status": "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0,8",
    },
)


@pytest.mark.parametrize(
    ("target", "code", "named"),
    [
        (Target(()), "no_cpus", "no CPUs"),
        (Target((1, 3)), "no_such_cpu", "CPU 3 "),
        (Target((1, 2)), "cpus_not_allowed", "CPU 2 "),
        (Target((1,), {}, (8, 1)), "no_such_node", "NUMA node 1 "),
    ],
)
def test_targets_are_checked_before_anything_changes(target: Target, code: str, named: str) -> None:
    with pytest.raises(PlacementError, match=named) as refused:
        check_allowed(target, Allowance.of_process(RECORDED), RECORDED)
    assert refused.value.code == code
    assert refused.value.remedy and refused.value.seen and refused.value.wanted is not None


def test_a_target_inside_its_limits_passes() -> None:
    check_allowed(Target((0, 1), {}, (8, 0)), Allowance.of_process(RECORDED), RECORDED)
