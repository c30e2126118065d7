"""The lab without its machines: qemu's words for a topology, the RAM disk, results, and what is said where something is
missing.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tools.lab.__main__ import chosen, main, parse
from tools.lab.archive import dependencies, initramfs, modules_in_order
from tools.lab.folder import ARCHITECTURES, LabError
from tools.lab.guest import Outcome
from tools.lab.prepare import lacking, missing
from tools.lab.qemu import Share, command, identity
from tools.lab.suite import JOBS, QUICK, Check, Job, JobResult, checks_of, ended, parse_results, summary
from tools.lab.topologies import TOPOLOGIES, machine_words

RESULTS = b"""<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite>
<testcase classname="tests.lab.test_lab_run" name="test_one[node0]" time="1.5" />
<testcase classname="tests.lab.test_lab_run" name="test_two" time="0.1"><skipped type="pytest.skip" message="no node">x</skipped></testcase>
<testcase classname="tests.lab.test_lab_run" name="test_three" time="0"><failure message="short">all of it</failure></testcase>
<testcase classname="tests.lab.test_lab_run" name="test_four" time="0"><error message="short">in the set-up</error></testcase>
</testsuite></testsuites>"""
PASSED = b'<testsuites><testcase classname="a" name="b" time="0" /></testsuites>'


def outcome(code: int | None, xml: bytes | None) -> Outcome:
    return Outcome(code, "what it printed", "", "", 9.0, False, {} if xml is None else {"results.xml": xml})


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_cpu_and_all_memory_belong_to_one_node(name: str, arch: str) -> None:
    topology = TOPOLOGIES[name]
    words = machine_words(topology, arch)
    nodes = [dict(part.partition("=")[::2] for part in word.split(",")) for word in words if word.startswith("node,")]
    assert [int(node["nodeid"]) for node in nodes] == list(range(len(topology.nodes)))
    cpus = [cpu for node in nodes if "cpus" in node for cpu in range(*_bounds(node["cpus"]))]
    assert cpus == list(range(topology.cpus))
    sizes = [int(word.partition("size=")[2].rstrip("M")) for word in words if word.startswith("memory-backend-ram")]
    assert sizes == [node.mib for node in topology.nodes if node.mib] and f"{sum(sizes)}M" in words
    shape = dict(part.partition("=")[::2] for part in words[words.index("-smp") + 1].split(",")[1:])
    assert int(shape["sockets"]) * int(shape["cores"]) * int(shape["threads"]) == topology.cpus


def _bounds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last) + 1


def test_devices_are_attached_where_there_is_acpi() -> None:
    assert any("numa_node=1" in word for word in machine_words(TOPOLOGIES["2x2"], "x86_64"))
    assert not any("pxb" in word for word in machine_words(TOPOLOGIES["2x2"], "aarch64"))
    assert TOPOLOGIES["2x2"].savable and not TOPOLOGIES["managed"].savable


def test_the_root_is_shared_read_only_and_the_guest_ends_with_its_parent() -> None:
    shares = (Share("root", Path("/")), Share("out", Path("/tmp/x"), False))
    words = command(TOPOLOGIES["2x2"], "x86_64", Path("k"), Path("i"), shares, 5, 6, None)
    devices = [word for word in words if word.startswith("local,")]
    assert [word.endswith("readonly=on") for word in devices] == [True, False]
    assert words[:4] == ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"]
    assert "-incoming" not in words
    assert command(TOPOLOGIES["2x2"], "x86_64", Path("k"), Path("i"), shares, 5, 6, Path("/s"))[-2:] == [
        "-incoming",
        "exec:cat '/s'",
    ]


def test_a_saved_machine_is_used_for_the_same_machine_only() -> None:
    topologies = [identity(one, "x86_64", ("root", "out"), {"kernel": 1}) for one in TOPOLOGIES.values()]
    one = TOPOLOGIES["2x2"]
    assert len({*topologies, identity(one, "aarch64", ("root", "out"), {"kernel": 1})}) == len(TOPOLOGIES) + 1
    assert (
        len(
            {
                identity(one, "x86_64", tags, {"kernel": kernel})
                for tags in (("root",), ("root", "out"))
                for kernel in (1, 2)
            }
        )
        == 4
    )
    assert identity(one, "x86_64", ("root",), {"kernel": 1}) == identity(one, "x86_64", ("root",), {"kernel": 1})


def test_modules_come_after_those_they_depend_on(tmp_path: Path) -> None:
    for name, needs in {"9p": "9pnet,netfs", "9pnet": "", "netfs": "fs-cache", "fs_cache": "", "other": ""}.items():
        (tmp_path / f"{name}.ko").write_bytes(b"\x7fELF\0name=x\0depends=" + needs.encode() + b"\0retpoline=Y\0")
    assert dependencies((tmp_path / "9p.ko").read_bytes()) == ("9pnet", "netfs")
    assert [name for name, _ in modules_in_order(tmp_path, ["9p", "netfs", "absent"])] == [
        "9pnet",
        "fs_cache",
        "netfs",
        "9p",
    ]


def test_a_module_in_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    (tmp_path / "9p.ko.zst").write_bytes(b"x")
    with pytest.raises(LabError, match=r"9p\.ko\.zst is compressed"):
        list(modules_in_order(tmp_path, ["9p"]))


def test_the_ram_disk_holds_what_the_guest_starts() -> None:
    files = read_cpio(gzip.decompress(initramfs(b"program", "#!/bin/busybox sh\n", [("one", b"1"), ("two", b"22")])))
    assert files["bin/busybox"] == (0o100755, b"program") and files["init"] == (0o100755, b"#!/bin/busybox sh\n")
    assert files["modules/order"][1] == b"one.ko\ntwo.ko\n" and files["modules/two.ko"][1] == b"22"
    assert files["dev/console"][0] == 0o020600 and list(files)[-1] == "TRAILER!!!"


def read_cpio(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Mode and content by name."""
    found, at = {}, 0
    while "TRAILER!!!" not in found:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name = data[at + 110 : at + 110 + fields[11] - 1].decode()
        start = -(-(at + 110 + fields[11]) // 4) * 4
        found[name] = (fields[1], data[start : start + fields[6]])
        at = -(-(start + fields[6]) // 4) * 4
    return found


def test_results_are_read_as_they_are() -> None:
    checks = parse_results(RESULTS)
    assert [(check.name, check.outcome, check.told) for check in checks] == [
        ("test_lab_run::test_one[node0]", "passed", ""),
        ("test_lab_run::test_two", "skipped", "no node"),
        ("test_lab_run::test_three", "failed", "all of it"),
        ("test_lab_run::test_four", "failed", "in the set-up"),
    ]


@pytest.mark.parametrize(
    ("code", "xml", "outcomes"),
    [
        (0, PASSED, ["passed"]),
        (1, RESULTS, ["passed", "skipped", "failed", "failed"]),
        (None, None, ["failed"]),
        (2, PASSED, ["passed", "failed"]),
        (None, PASSED, ["passed", "failed"]),
    ],
)
def test_a_machine_that_ends_badly_is_a_failure(code: int | None, xml: bytes | None, outcomes: list[str]) -> None:
    checks = checks_of(outcome(code, xml))
    assert [check.outcome for check in checks] == outcomes
    assert "failed" not in outcomes or checks[-1].told


def test_progress_counts_tests_that_have_ended() -> None:
    assert ended("a::b PASSED [ 5%]\na::c[x] SKIPPED (why) [ 9%]\na::d FAILED [12%]\na::e ") == 3


def test_the_last_line_counts_all_machines() -> None:
    job = Job("2x2", "x86_64", ("run",))
    results = [
        JobResult(job, (Check("a", "passed", 1.0), Check("b", "skipped", 1.0)), 3.0),
        JobResult(job, (Check("a", "failed", 1.0), Check("c", "passed", 0.1)), 2.0),
    ]
    counts = "lab: 2 passed, 1 failed, 1 skipped on 2 machines in 5 s"
    assert summary(results, 5.4) == f"{counts}; failed: 2x2 x86_64 a"


def test_every_job_names_a_machine_and_files_that_are_there() -> None:
    folder = Path(__file__).resolve().parents[1] / "lab"
    for job in (*JOBS, *QUICK):
        assert job.topology in TOPOLOGIES and job.arch in ARCHITECTURES
        assert [name for name in job.tests if not (folder / f"test_lab_{name}.py").is_file()] == []
    assert {job.topology for job in JOBS} == set(TOPOLOGIES)
    ran = {name for job in JOBS for name in job.tests}
    assert ran == {file.stem.removeprefix("test_lab_") for file in folder.glob("test_lab_*.py")}
    assert len({job.name for job in JOBS}) == len(JOBS)


def test_options_narrow_what_runs() -> None:
    assert chosen(parse(["--quick"])) == list(QUICK)
    assert {job.arch for job in chosen(parse(["--arch", "aarch64"]))} == {"aarch64"}
    narrowed = chosen(parse(["-t", "8x2", "-t", "smt", "--tests", "golden"]))
    assert {(job.topology, job.tests) for job in narrowed} == {("8x2", ("golden",)), ("smt", ("golden",))}
    assert len(narrowed) == 2


def test_options_that_leave_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--tests", "nothing"]) == 2
    assert "no machine is left" in capsys.readouterr().err
    for words in (["--guests", "0"], ["--shell", "2x2"], ["--topology", "9x9"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 2


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing("x86_64") == ["qemu-system-x86", "busybox-static", "util-linux"]
    assert main(["--folder", str(tmp_path / "lab")]) == 2
    said = capsys.readouterr().err
    assert (
        "apt-get install --no-install-recommends qemu-system-x86" in said
        and "qemu-system-arm" in said
        and "--arch x86_64" in said
    )
    assert not (tmp_path / "lab").exists()


def test_a_host_of_another_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "needs an x86-64 host" in lacking("x86_64") and "riscv64" in lacking("x86_64")
