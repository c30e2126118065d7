"""Makes the packages of a release: wheels, the source distribution, checksums.

    python -m tools.wheels                       all of them, into dist/
    python -m tools.wheels --machine x86_64      wheels for one kind of processor
    python -m tools.wheels --python /opt/py/bin/python3.12    with these interpreters

Exit codes: 0 all were made, 1 one could not be made or is not what it is to be, 130 interrupted. docs/releasing.md says
what to do with them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.wheels.build import Workshop, build_source, build_wheel
from tools.wheels.checksums import write_checksums
from tools.wheels.compilers import find_zig
from tools.wheels.emulated import check_kernels, how_to_run
from tools.wheels.pythons import choose, find_pythons
from tools.wheels.targets import MACHINES, PYTHONS, WheelError

ROOT = Path(__file__).parents[2]


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.wheels", description="Make wheels, the source distribution and their checksums."
    )
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the packages go (default: dist)")
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build/wheels", help="what is kept between runs (default: build/wheels)"
    )
    parser.add_argument(
        "--machine", action="append", choices=list(MACHINES), help="for this processor only; may be given several times"
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PATH",
        help="an interpreter to build with; may be given several times",
    )
    parser.add_argument(
        "--no-checks", dest="checks", action="store_false", help="do not compile and run the checks of the kernels"
    )
    return parser.parse_args(words)


class Teller:
    """Says on standard output which of the steps is at work, and how far it is; each line with the minutes since the
    beginning.
    """

    def __init__(self, steps: int) -> None:
        self._begin, self._step, self._steps = time.monotonic(), 0, steps

    def begin(self, what: str) -> None:
        """The next step begins."""
        self._step += 1
        self.tell(f"{self._step} of {self._steps}: {what}")

    def tell(self, what: str) -> None:
        """Something about the step at work."""
        minutes, seconds = divmod(int(time.monotonic() - self._begin), 60)
        print(f"wheels {minutes:2d}:{seconds:02d}  {what}", flush=True)


def make(given: argparse.Namespace) -> None:
    """Make all that was asked for. WheelError at the first that cannot be made."""
    machines = [MACHINES[name] for name in given.machine or MACHINES]
    pythons = find_pythons(given.python)
    chosen = {target: choose(target, pythons) for target in PYTHONS}
    dist, build = given.dist.absolute(), given.build.absolute()
    dist.mkdir(parents=True, exist_ok=True)
    build.mkdir(parents=True, exist_ok=True)
    teller = Teller(len(machines) * (len(PYTHONS) + given.checks) + 1)
    shop = Workshop(ROOT, build, dist, find_zig(), teller.tell)
    teller.tell(
        "all together: about 12 minutes for each processor on two cores, a few seconds where nothing has changed"
    )
    teller.begin("the source distribution")
    made = [build_source(shop, chosen[PYTHONS[0]])]
    for machine in machines:
        for number, target in enumerate(PYTHONS):
            length = "about 8 minutes, as all kernels are compiled" if number == 0 else "about a minute"
            teller.begin(f"the wheel for {machine.name}, {target.words}: the compiler is at work, {length}")
            made.append(build_wheel(shop, machine, target, chosen[target]))
            teller.tell(f"{made[-1].name}: {made[-1].stat().st_size / 1e6:.1f} MB")
        if given.checks:
            teller.begin(f"the kernels for {machine.name}: compiling their checks, about 2 minutes, and running them")
            before = how_to_run(machine)
            teller.tell(before if isinstance(before, str) else f"checked: {check_kernels(shop, machine, before)}")
    teller.tell(f"checksums in {write_checksums(dist, made)}")


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    try:
        make(parse(sys.argv[1:] if words is None else words))
    except WheelError as error:
        print(f"wheels: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
