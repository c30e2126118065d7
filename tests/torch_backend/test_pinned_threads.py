"""Threads of torch on the CPU are where the variables of OpenMP say, one on each CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

_PROGRAM = """
import json, os, sys
from homenode.compute.openmp import set_openmp_variables
set_openmp_variables(json.loads(sys.argv[1]), 100)
from homenode.compute.torch import open_backend
backend = open_backend("torch:cpu", threads=len(json.loads(sys.argv[1])))
import torch
before = {}
def spent():
    found = {}
    for task in os.listdir("/proc/self/task"):
        field = open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()
        found[int(task)] = int(field[11]) + int(field[12])
    return found
big = torch.ones(1 << 22)
before = spent()
for _ in range(400):
    big.sin()
heavy = [task for task, ticks in spent().items() if ticks - before.get(task, 0) > 10]
print(json.dumps([sorted(os.sched_getaffinity(task)) for task in heavy]), backend.statistics()["threads"])
"""


def test_each_thread_that_computes_has_a_cpu_of_its_own() -> None:
    cpus = sorted(os.sched_getaffinity(0), reverse=True)[:2]
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps(cpus)], env=clean, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    masks, _, threads = done.stdout.strip().rpartition(" ")
    assert sorted(json.loads(masks)) == sorted([cpu] for cpu in cpus)
    assert threads == "2"
