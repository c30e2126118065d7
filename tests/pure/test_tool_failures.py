"""A vendor's tool that fails: the line that says why is quoted, whatever stands around it, and plans say that they were
made without the tool.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.errors import PlacementError
from homenode.host.discovery.read import read_host
from homenode.host.discovery.snapshot import parse_recording, record
from homenode.host.plan.demand import Demand
from homenode.host.plan.select import make_plan
from homenode.host.topology.accelerators.cells import telling_line, tool_error
from homenode.host.topology.host import Host
from homenode.host.topology.source import CommandResult, RecordedSource
from tests.examples import examples
from tests.npu_hosts import kernel_files, npu_host, single_chips

NODES = {0: "0-15", 1: "16-31"}
REMARK = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)"
QUERY = "nvidia-smi --query-gpu=index,uuid,pci.bus_id,name --format=csv,noheader"
# What tools are known to say when they fail.
FAILURES = (
    "dcmi module initialize failed. ret is -8005",
    "dcmi model initialized failed, because the device is used. ret is -8020",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    "Failed to initialize NVML: Driver/library version mismatch",
    "Unable to determine the device handle for GPU0000:65:00.0: Unknown Error",
    "npu-smi: error while loading shared libraries: libdcmi.so: cannot open shared object file",
    "This device does not support querying topo.",
    "GPU is lost. Reboot the system to recover this GPU",
)
AROUND = (
    REMARK,
    "",
    "[WARNING] the log directory is not writable",
    "log level: 3",
    "NVML library version: 550.54",
    "+------------------------+------------------------+",
    "| 0     910B3            | OK                     |",
)


@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(
    failure=st.sampled_from(FAILURES), before=st.lists(st.sampled_from(AROUND)), after=st.lists(st.sampled_from(AROUND))
)
def test_the_line_that_says_why_is_found_among_others(failure: str, before: list[str], after: list[str]) -> None:
    assert telling_line("\n".join([*before, failure, *after])) == failure


def test_of_several_failures_the_last_is_what_the_tool_ended_by_and_without_one_the_first_line_is_taken() -> None:
    assert (
        telling_line("cannot open /dev/davinci0\ncannot open /dev/davinci_manager\n")
        == "cannot open /dev/davinci_manager"
    )
    assert telling_line(f"{REMARK}\nsomething else\nand more") == "something else"
    assert telling_line(f"{REMARK}\n") == REMARK and telling_line("\n \n") == ""


def test_the_end_of_megabytes_is_looked_at_and_no_more() -> None:
    assert telling_line("x\n" * 4_000_000 + FAILURES[0]) == FAILURES[0]


@pytest.mark.parametrize("rc", [0, 255])
@pytest.mark.parametrize("failure", FAILURES[:2])
def test_a_failing_npu_smi_is_quoted_by_the_refusal(failure: str, rc: int) -> None:
    said = CommandResult(f"{REMARK}\n{REMARK}\n{failure}\n", rc, "failed" if rc else "")
    commands = dict.fromkeys(("npu-smi info -m", "npu-smi info", "npu-smi info -t topo"), said)
    host = npu_host(NODES, [], commands=commands)
    for strategy in ("fair", "ascend", "numa-bind"):
        with pytest.raises(PlacementError) as caught:
            make_plan(strategy, host, Demand())
        assert caught.value.seen == (f"exit code {rc}, {failure}" if rc else failure)


def test_a_table_of_processes_that_is_an_error_text_is_the_cause_and_not_that_nothing_runs() -> None:
    host = npu_host(NODES, single_chips(NODES), commands={"npu-smi info": f"{REMARK}\n{FAILURES[0]}\n"})
    with pytest.raises(PlacementError) as caught:
        make_plan("ascend", host, Demand())
    assert (caught.value.code, caught.value.seen) == ("npu_info_unparseable", FAILURES[0])
    told = make_plan("ascend", host, Demand(before_start=True))
    assert "npu_info_unparseable" in {finding.code for finding in told.findings}


def test_a_topology_that_is_an_error_text_is_quoted_by_the_fallback() -> None:
    host = npu_host(NODES, single_chips(NODES), commands={"npu-smi info -t topo": f"{REMARK}\n{FAILURES[0]}\n"})
    (fallback,) = [
        finding
        for finding in make_plan("topo-affinity", host, Demand()).findings
        if finding.code == "topo_affinity_missing"
    ]
    assert FAILURES[0] in fallback.message


def test_what_a_tool_says_on_standard_error_alone_is_quoted_and_recorded() -> None:
    result = CommandResult("", 127, "failed", FAILURES[5])
    error = tool_error(("npu-smi", "info", "-m"), result)
    assert error.seen == FAILURES[5]
    source = RecordedSource("aarch64", kernel_files(NODES, None, "", ""), {"npu-smi info -m": result})
    again = parse_recording(record(source))
    assert again.commands["npu-smi info -m"] == result


def gpu_host(query: CommandResult, *, seen: bool) -> Host:
    files = kernel_files(NODES, None, "", "")
    if seen:
        facts = {
            "vendor": "0x10de",
            "device": "0x2330",
            "class": "0x030200",
            "numa_node": "1",
            "local_cpulist": "16-31",
        }
        files |= {f"/sys/bus/pci/devices/0000:80:04.0/{name}": value for name, value in facts.items()}
    return read_host(RecordedSource("x86_64", files, {QUERY: query}))


@pytest.mark.parametrize("strategy", ["fair", "numa-bind"])
@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("failure", ["failed", "timeout", ""])
def test_a_plan_without_nvidia_smi_says_so(failure: str, seen: bool, strategy: str) -> None:
    answer = CommandResult("" if failure == "timeout" else f"{FAILURES[2]}\n", 9 if failure else 0, failure)
    plan = make_plan(strategy, gpu_host(answer, seen=seen), Demand())
    told = [finding for finding in plan.findings if "nvidia-smi" in finding.text]
    assert told and all(finding.severity == "warning" for finding in told)


def test_cpu_workers_and_hosts_without_a_tool_are_told_nothing_of_tools() -> None:
    broken = gpu_host(CommandResult(FAILURES[2], 9, "failed"), seen=True)
    missing = gpu_host(CommandResult("", 127, "missing"), seen=True)
    none = gpu_host(CommandResult("No devices were found", 6, "failed"), seen=False)
    for plan in (
        make_plan("cpu-threads", broken, Demand()),
        make_plan("fair", missing, Demand()),
        make_plan("fair", none, Demand()),
    ):
        assert not [finding for finding in plan.findings if finding.code.startswith(("tool_", "nvidia_"))]
