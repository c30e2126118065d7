"""Which tests run on which machine of the lab, and what came of them. Reading results is pure."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.lab.folder import LabError, LabFolder
from tools.lab.guest import Guest, Outcome
from tools.lab.topologies import TOPOLOGIES

# of one machine, on a host that is busy with other things; alone on two cores the longest takes three minutes
GUEST_S = 3600.0
_RESULTS = "results.xml"
_NAMED = 8  # failed tests, in the last line
_WORDS = (" PASSED", " FAILED", " ERROR", " SKIPPED")  # after the name of each test that has ended
_ENVIRONMENT = {
    "HOMENODE_LAB": "1",  # nobody else works on the machine
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # some plugins take seconds to import under emulation
    "PYTHONUNBUFFERED": "1",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
OPTIONS = "-v -ra --color=no -p pytest_timeout -p no:cacheprovider -o addopts= -o timeout=0".split()

PLACE = ("host", "policies", "golden")  # what depends on nodes alone; the other files run on one machine or two


@dataclass(frozen=True, slots=True)
class Job:
    """The tests `tests/lab/test_lab_{name}.py` for every name of `tests`, on one machine."""

    topology: str
    arch: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.topology} {self.arch}"


@dataclass(frozen=True, slots=True)
class Check:
    """A test that has run: `outcome` is passed, failed or skipped; `told` says why it did not pass."""

    name: str
    outcome: str
    seconds: float
    told: str = ""


@dataclass(frozen=True, slots=True)
class JobResult:
    """`seconds`: of the whole machine, from its start until it was off; `cpu_seconds`: of them those that the host gave
    it. `retried`: the first guest had died without a word.
    """

    job: Job
    checks: tuple[Check, ...]
    seconds: float
    retried: bool = False
    cpu_seconds: float = 0.0

    def count(self, outcome: str) -> int:
        return sum(check.outcome == outcome for check in self.checks)


# The longest first, so that two lanes end at about the same time.
JOBS = (
    Job("smt", "x86_64", (*PLACE, "offline", "neighbours")),
    Job("2x2", "x86_64", (*PLACE, "residency", "levels", "serve", "models")),
    Job("4nodes", "x86_64", (*PLACE, "bind", "models")),
    Job("cpuless", "x86_64", (*PLACE, "run", "full")),
    Job("2s4n", "x86_64", (*PLACE, "engine", "ranks")),
    Job("2x2", "aarch64", (*PLACE, "residency", "levels")),
    Job("memless", "x86_64", (*PLACE, "residency", "run", "cpuset")),
    Job("8x2", "x86_64", (*PLACE, "residency")),
    Job("4nodes", "aarch64", PLACE),
    Job("6x2", "aarch64", ("host", "ascend")),
    Job("managed", "x86_64", ("interrupts",)),
)
QUICK = (Job("2x2", "x86_64", ("host", "residency", "policies")),)


def run_job(job: Job, folder: LabFolder, watch: Callable[[int], None] | None = None) -> JobResult:
    """Boot, test, power off. `watch` is told how many tests have ended. A guest that dies without an exit status is
    started once more.
    """
    guest = Guest(TOPOLOGIES[job.topology], job.arch, folder)
    python = sys.executable if job.arch == "x86_64" else "python3"
    words = [
        python,
        "-m",
        "pytest",
        *OPTIONS,
        f"--junitxml=/run/lab/{_RESULTS}",
        *(f"tests/lab/test_lab_{name}.py" for name in job.tests),
    ]
    told = None if watch is None else lambda text: watch(ended(text))
    seconds, cpu_seconds, retried = 0.0, 0.0, False
    while True:
        try:
            outcome = guest.run(words, {**_ENVIRONMENT, "HOMENODE_LAB_MACHINE": job.topology}, GUEST_S, told)
        except LabError as error:
            return JobResult(job, (Check("the machine starts", "failed", 0.0, str(error)),), seconds, retried)
        seconds, cpu_seconds = seconds + outcome.seconds, cpu_seconds + outcome.cpu_seconds
        if retried or outcome.code is not None or outcome.timed_out:
            return JobResult(job, checks_of(outcome), seconds, retried, cpu_seconds)
        retried = True


def ended(output: str) -> int:
    """How many tests have ended, from pytest's output so far."""
    return sum(output.count(word) for word in _WORDS)


def checks_of(outcome: Outcome) -> tuple[Check, ...]:
    """The tests in a guest's results; one failed check stands for results that are missing or that do not explain the
    exit code.
    """
    if _RESULTS not in outcome.files:
        return (Check("the tests run to their end", "failed", outcome.seconds, outcome.trouble),)
    checks = parse_results(outcome.files[_RESULTS])
    if outcome.code == 0 or any(check.outcome == "failed" for check in checks):
        return checks
    return (*checks, Check("pytest ends well", "failed", 0.0, outcome.trouble))


def parse_results(xml: bytes) -> tuple[Check, ...]:
    """The tests of a file in JUnit's format, as pytest writes it."""
    return tuple(_check(case) for case in ElementTree.fromstring(xml).iter("testcase"))


def _check(case: ElementTree.Element) -> Check:
    name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    seconds = float(case.get("time", 0))
    for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(kind)
        if found is not None:
            return Check(
                name, outcome, seconds, found.text if outcome == "failed" and found.text else found.get("message", "")
            )
    return Check(name, "passed", seconds)


def summary(results: Sequence[JobResult], seconds: float) -> str:
    """The last line: what passed and what failed on all machines together, and the names of what failed."""
    passed, failed, skipped = (
        sum(result.count(outcome) for result in results) for outcome in ("passed", "failed", "skipped")
    )
    names = [
        f"{result.job.name} {check.name}" for result in results for check in result.checks if check.outcome == "failed"
    ]
    told = "".join(f"; failed: {name}" for name in names[:_NAMED])
    return (
        f"lab: {passed} passed, {failed} failed, {skipped} skipped on {len(results)} machines in {seconds:.0f} s{told}"
    )
