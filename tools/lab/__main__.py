"""The lab's command: prepare what is missing, run tests/lab in virtual machines, say what came of it.

    python -m tools.lab                 all machines
    python -m tools.lab --quick         one machine and the tests that need the least time
    python -m tools.lab -t 8x2 --tests golden   one machine, one of the files tests/lab/test_lab_*.py
    python -m tools.lab --shell 2x2 -- numactl --hardware     any command in a machine

Exit codes: 0 all passed, 1 something failed, 2 the lab cannot run here.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from tools.lab.bytecode import make_bytecode
from tools.lab.folder import ARCHITECTURES, DEFAULT, LabError, LabFolder
from tools.lab.guest import Guest
from tools.lab.prepare import prepare
from tools.lab.report import Lanes, as_json, show
from tools.lab.suite import JOBS, OPTIONS, QUICK, Job, JobResult, run_job, summary
from tools.lab.topologies import TOPOLOGIES

_INTERRUPTED = 130


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.lab", description="Run tests/lab in small virtual machines with several NUMA nodes."
    )
    parser.add_argument(
        "--folder", type=Path, default=DEFAULT, help="where downloads and saved machines are kept (default: .lab)"
    )
    parser.add_argument("--quick", action="store_true", help="one machine and the tests that need the least time")
    parser.add_argument("--arch", choices=list(ARCHITECTURES), help="machines of one processor only")
    parser.add_argument(
        "-t",
        "--topology",
        action="append",
        choices=list(TOPOLOGIES),
        help="these machines only; may be given several times",
    )
    parser.add_argument("--tests", help="these test files only, by what follows test_lab_: run,golden")
    parser.add_argument(
        "--guests", type=int, default=2, help="how many machines run side by side, each on one core (default: 2)"
    )
    parser.add_argument(
        "--json", action="store_true", help="every check as JSON on standard output, instead of the table"
    )
    parser.add_argument(
        "--shell", choices=list(TOPOLOGIES), metavar="TOPOLOGY", help="run the command after -- in this machine instead"
    )
    parser.add_argument("command", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.guests < 1:
        parser.error(f"--guests {given.guests}: at least one machine must run")
    if bool(given.shell) != bool(given.command):
        parser.error("--shell TOPOLOGY and a command after -- go together")
    return given


def chosen(given: argparse.Namespace) -> list[Job]:
    """The jobs that the options leave. LabError when there is none."""
    jobs = list(QUICK if given.quick else JOBS)
    if given.topology:
        jobs = [job for job in jobs if job.topology in given.topology]
    if given.arch:
        jobs = [job for job in jobs if job.arch == given.arch]
    if given.tests:
        wanted = given.tests.split(",")
        jobs = [
            replace(job, tests=kept) for job in jobs if (kept := tuple(name for name in job.tests if name in wanted))
        ]
    if not jobs:
        raise LabError("no machine is left by these options; `python -m tools.lab --help` lists them")
    return jobs


def run_all(jobs: Sequence[Job], folder: LabFolder, guests: int) -> list[JobResult]:
    """Run the jobs on `guests` machines at a time; results in the order of the jobs."""
    found: dict[str, JobResult] = {}

    def run(job: Job) -> JobResult:
        lanes.begin(job)
        return run_job(job, folder, lambda tests: lanes.update(job, tests))

    with Lanes() as lanes, ThreadPoolExecutor(guests) as pool:
        try:
            for done in as_completed([pool.submit(run, job) for job in jobs]):
                result = done.result()
                found[result.job.name] = result
                lanes.end(result)
        except KeyboardInterrupt:
            print("lab: interrupted", file=sys.stderr, flush=True)
            os._exit(_INTERRUPTED)  # without waiting for the guests, which end with this process
    return [found[job.name] for job in jobs]


def shell(given: argparse.Namespace, folder: LabFolder) -> int:
    """A command in a machine: its output and its exit code."""
    outcome = Guest(TOPOLOGIES[given.shell], given.arch or "x86_64", folder).run(
        given.command, {"HOME": "/root"}, 3600.0
    )
    sys.stdout.write(outcome.out)
    sys.stderr.write(outcome.err)
    if outcome.code is None:
        raise LabError(f"the machine ended before the command did: {outcome.trouble}")
    return outcome.code


def main(words: Sequence[str] | None = None) -> int:
    given = parse(sys.argv[1:] if words is None else words)
    folder = LabFolder(given.folder.resolve())
    began = time.monotonic()
    try:
        jobs = [] if given.shell else chosen(given)
        prepare(folder, arm64=any(job.arch == "aarch64" for job in jobs) or given.arch == "aarch64")
        if given.shell:
            return shell(given, folder)
        make_bytecode(OPTIONS)
        results = run_all(jobs, folder, given.guests)
    except (LabError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(as_json(results))
    else:
        show(results)
    print(summary(results, time.monotonic() - began), file=sys.stderr if given.json else sys.stdout, flush=True)
    return 1 if any(result.count("failed") for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
