"""Recorded hosts: what is written reads as the live machine did, nothing private is in it, and bad files get a clear
error.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.errors import UserError
from homenode.host.discovery.read import read_host
from homenode.host.discovery.redaction import Redaction
from homenode.host.discovery.snapshot import (
    FORMAT,
    load_recording,
    parse_recording,
    record,
    recording_text,
    save_recording,
    write_recording,
)
from homenode.host.topology.source import CommandResult, LiveSource, RecordedSource
from homenode.testing.hosts.synthetic import synthetic
from tests.examples import examples

UUIDS = ("6f2b6a3c-11d2-4c6a-9f57-0a1b2c3d4e5f", "0c0ffee0-5a5a-4b4b-8c8c-123456789abc")
QUERY = "nvidia-smi --query-gpu=index,uuid,pci.bus_id,name --format=csv,noheader"


def reread(source: RecordedSource) -> RecordedSource:
    return parse_recording(json.loads(recording_text(record(source))))


def test_the_live_host_reads_the_same_from_its_recording(tmp_path: Path) -> None:
    source = LiveSource()
    save_recording(tmp_path / "here.json", source)
    assert read_host(load_recording(tmp_path / "here.json")) == read_host(source)


@pytest.mark.parametrize(
    "line",
    [
        "2s/4n/64c/smt2/gpu=8",
        "4s/8n/640c/npu=16:A3/arm",
        "8c/0n",
        "2s/8n/192c/npu=8:A2/allowed=0-47/quota=3",
        "1s/2n/8c/cpuset=1-3/cpuless=2/ids=0,8,250,251",
    ],
)
def test_a_recording_of_a_recording_reads_the_same(line: str) -> None:
    source = synthetic(line)
    assert read_host(reread(source)) == read_host(source)
    assert record(reread(source), read_host) == record(source, read_host)


def test_the_file_has_one_fact_a_line_and_counts_as_people_do() -> None:
    lines = recording_text(record(synthetic("1s/12c"), about="a machine")).splitlines()
    assert lines[:4] == ["{", f'"format": "{FORMAT}",', '"machine": "x86_64",', '"about": "a machine",']
    cores = [line for line in lines if "core_cpus_list" in line]
    assert [line.split("/")[5] for line in cores] == [f"cpu{cpu}" for cpu in range(12)]


def private_machine() -> RecordedSource:
    group = "/kubepods.slice/pod7c9e6679/alice-container-99"
    return RecordedSource(
        "x86_64",
        {
            "/proc/self/status": (
                "Name:\tsecret-program\nUid:\t1234\nCpus_allowed_list:\t0-1\nMems_allowed_list:\t0\n"
                "CapEff:\t0000000000000400"
            ),
            "/proc/self/cgroup": f"4:memory:{group}\n3:cpuset:{group}\n0::{group}",
            f"/sys/fs/cgroup{group}/cpu.max": "150000 100000",
            f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes": "1073741824",
            f"/sys/fs/cgroup/memory{group}/memory.usage_in_bytes": "77777",
            f"/sys/fs/cgroup/cpuset{group}/cpuset.cpus": "0-1",
            "/proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 1234 kB\nMemFree: 1111 kB",
            "/proc/interrupts": (
                "     CPU0  CPU1\n 31:  555  666  PCI-MSIX-0000:01:00.0  0-edge  enx02fe34a1b2c3-rx-0\nNMI: 5 6  "
                "Non-maskable interrupts"
            ),
            "/proc/sys/kernel/hostname": "alices-box",
            "/sys/devices/system/cpu/online": "0-1",
            "/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
            "/sys/bus/pci/devices/0000:01:00.0/class": "0x030200",
            "/sys/bus/pci/devices/0000:01:00.0/msi_irqs/31": "msix",
        },
        {
            QUERY: CommandResult(
                "\n".join(f"{gpu}, GPU-{uuid}, 00000000:0{gpu + 1}:00.0, A GPU" for gpu, uuid in enumerate(UUIDS))
            ),
            "nvidia-smi topo -m": CommandResult("\tGPU0\tGPU1\nSerial Number : 1650924011111"),
            "npu-smi info": CommandResult(
                "| NPU     Chip | Process id | Process name |\n| 0       0    | 4711       | alices-model |"
            ),
            "npu-smi info -m": CommandResult(
                "\tNPU ID    Chip ID    Chip Logic ID    Chip Name\n\t0         0          0                910B3"
            ),
        },
        {"CUDA_VISIBLE_DEVICES": f"GPU-{UUIDS[1]},GPU-6f2b6a3c"},
    )


def test_nothing_private_is_recorded() -> None:
    recording = record(private_machine())
    text = recording_text(recording)
    for secret in (
        "secret-program",
        "1234",
        "alice",
        "kubepods",
        "7c9e6679",
        "77777",
        "02fe34a1b2c3",
        "555",
        "16509240",
        *UUIDS,
        "6f2b6a3c",
    ):
        assert secret not in text, secret
    assert recording["files"]["/proc/self/cgroup"] == "4:memory:/g1/g2/g3\n3:cpuset:/g1/g2/g3\n0::/g1/g2/g3"
    assert recording["files"]["/sys/fs/cgroup/g1/g2/g3/cpu.max"] == "150000 100000"
    # The second GPU comes first, and a prefix has become the whole stand-in.
    stand_ins = [f"GPU-00000000-0000-0000-0000-{place:012x}" for place in (1, 0)]
    assert recording["env"] == {"CUDA_VISIBLE_DEVICES": ",".join(stand_ins)}
    assert recording["commands"]["npu-smi info"].splitlines()[1] == "| 0       0    | 4711       | process      |"


def test_what_is_left_says_the_same() -> None:
    live, recorded = read_host(private_machine()), read_host(parse_recording(record(private_machine())))
    assert (
        recorded.allowance == live.allowance
        and live.allowance.cpu_quota == 1.5
        and live.allowance.memory_limit == 1 << 30
    )
    assert recorded.interrupts == tuple(replace(one, actions=("enx000000000000-rx-0",)) for one in live.interrupts)
    assert recorded.devices == live.devices and recorded.devices[0].irqs == (31,)
    assert [chip.processes for chip in recorded.accelerators.of_kind("npu")] == [(4711,)]


def test_gpus_of_amd_keep_an_order_but_no_number() -> None:
    node = "/sys/class/kfd/kfd/topology/nodes"
    source = RecordedSource(
        "x86_64",
        {
            "/sys/devices/system/cpu/online": "0",
            f"{node}/0/properties": "cpu_cores_count 8\nsimd_count 0\nunique_id 0",
            f"{node}/1/properties": "simd_count 304\nlocation_id 1280\nunique_id 1311768467463790320",
            f"{node}/1/gpu_id": "4242",
            f"{node}/2/properties": "simd_count 304\nlocation_id 1536\nunique_id 81985529216486895",
            f"{node}/2/gpu_id": "4343",
            "/sys/class/kfd/kfd/proc/77/vram_4242": "123456789",
            "/sys/class/kfd/kfd/proc/77/vram_4343": "0",
        },
        env={"ROCR_VISIBLE_DEVICES": "GPU-0123456789abcdef"},
    )
    text = recording_text(record(source))
    for secret in ("1311768467463790320", "81985529216486895", "123456789", "0123456789abcdef"):
        assert secret not in text, secret
    live, recorded = read_host(source).accelerators.chips, read_host(reread(source)).accelerators.chips
    assert (
        [(chip.address, chip.processes) for chip in recorded]
        == [(chip.address, chip.processes) for chip in live]
        == [("0000:05:00.0", (77,)), ("0000:06:00.0", ())]
    )
    assert reread(source).env["ROCR_VISIBLE_DEVICES"] == recorded[1].uuid != recorded[0].uuid


class AskedSource(RecordedSource):
    """Remembers which files were asked for, also those that are not there."""

    def read(self, path: str) -> str | None:
        self.asked = {*getattr(self, "asked", ()), path}
        return super().read(path)


@pytest.mark.parametrize(
    "line", ["2s/4n/8c/smt2/gpu=2", "2n/8c/arm/npu=2:A2", "2n/4c/gpu=2:amd", "big=2/little=2", "0n/2c"]
)
def test_every_file_that_matters_is_on_the_list(line: str) -> None:
    made = synthetic(line)
    source = AskedSource(made.machine, made.files, made.commands)
    read_host(source)
    asked = {path: "0" for path in source.asked if not path.startswith("/sys/fs/cgroup/")}
    assert len(asked) > 25
    assert set(asked) - set(Redaction().files(asked)) == set()


def test_how_a_command_ended_survives() -> None:
    ends = {
        "npu-smi info -m": CommandResult("broken", 3, "failed"),
        "nvidia-smi topo -m": CommandResult("", -9, "timeout"),
    }
    source = RecordedSource("x86_64", {"/sys/devices/system/cpu/online": "0"}, ends)
    again = parse_recording(
        record(source, lambda recorder: [recorder.command(words.split()) for words in (*ends, "rocm-smi")])
    )
    assert again.command(["npu-smi", "info", "-m"]) == ends["npu-smi info -m"]
    assert again.command(["nvidia-smi", "topo", "-m"]).failure == "timeout"
    assert again.command(["rocm-smi"]).failure == "missing"


def minimal(**changes: object) -> dict[str, object]:
    return {"format": FORMAT, "machine": "aarch64", "files": {"/proc/meminfo": "MemTotal: 1 kB"}, **changes}


def test_optional_and_unknown_parts() -> None:
    source = parse_recording(
        minimal(
            env={"LOCAL_RANK": "3", "PATH": "/secret"}, comment="kept by hand", commands={"a b": {"out": "x", "rc": 2}}
        )
    )
    assert source.env == {"LOCAL_RANK": "3"}
    assert source.command(["a", "b"]) == CommandResult("x", 2, "failed")
    assert source.read("/proc/meminfo") == "MemTotal: 1 kB"


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        ([], "holds a list, not an object"),
        ({}, '"format" is null'),
        (minimal(format="homenode-host/2"), '"format" is "homenode-host/2"'),
        (minimal(machine="a b"), '"machine" is "a b"'),
        (minimal(machine=None), '"machine" is null'),
        (minimal(files=None), 'no object "files"'),
        (minimal(files=["x"]), '"files" is a list'),
        (minimal(files={"proc/meminfo": ""}), 'the path "proc/meminfo", wanted an absolute one'),
        (minimal(files={"/x\0": ""}), "wanted an absolute one"),
        (minimal(files={"/x": 7}), '"/x" in "files" is a number, not a text'),
        (minimal(files={"/x": "\ud800"}), "half a surrogate pair"),
        (minimal(env={"LOCAL_RANK": None}), '"LOCAL_RANK" in "env" is null'),
        (minimal(env="x"), '"env" is a text'),
        (minimal(commands={"c": 3}), 'for "c" a number'),
        (minimal(commands={"c": {"rc": 1.5}}), "exit code"),
        (minimal(commands={"c": {"rc": True}}), "exit code"),
        (minimal(commands={"c": {"out": []}}), 'for "c" an object'),
        (minimal(commands={f"c{n}": "" for n in range(5000)}), "5000 entries, wanted at most 4096"),
    ],
)
def test_what_is_no_recording_is_named(raw: object, fault: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_recording(raw, "some.json")
    assert refused.value.message.startswith("some.json is no recorded host: ")
    assert fault in refused.value.message


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON in UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"format": ' + b"9" * 5000 + b"}", "no recorded host"),
    ],
)
def test_what_is_no_json_is_named(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(UserError, match=fault):
        load_recording(tmp_path / "bad.json")


def test_files_that_cannot_be_read_or_are_too_large(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load_recording(tmp_path / "none.json")
    with pytest.raises(UserError, match="directory"):
        load_recording(tmp_path)
    with pytest.raises(UserError, match="cannot read"):
        load_recording("a\0b")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate((64 << 20) + 1)  # a hole: takes no room
    with pytest.raises(UserError, match="larger than 64 MiB"):
        load_recording(tmp_path / "large.json")


def test_a_recording_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    recording = record(synthetic("2c"))
    with pytest.raises(UserError, match="cannot write the recorded host"):
        write_recording(tmp_path / "no-such-folder" / "x.json", recording)
    (tmp_path / "old.json").write_text("old")
    write_recording(tmp_path / "old.json", recording)
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert load_recording(tmp_path / "old.json").machine == "x86_64"


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to(tmp_path / "b.json")
    (tmp_path / "b.json").symlink_to(tmp_path / "a.json")
    with pytest.raises(UserError, match="cannot write the recorded host"):
        write_recording(tmp_path / "a.json", record(synthetic("2c")))


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_recording(tmp_path / "pipe", recording := record(synthetic("2c")))
        assert os.read(end, 1 << 16).decode() == recording_text(recording)
    finally:
        os.close(end)


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "there.json")
    write_recording(tmp_path / "link.json", record(synthetic("2c")))
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "there.json").is_file()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, derandomize=True, max_examples=examples(300))
@given(
    raw=json_values
    | st.fixed_dictionaries(
        {
            "format": st.just(FORMAT),
            "machine": st.just("x86_64") | json_values,
            "files": st.dictionaries(st.text().map("/".__add__), st.text()) | json_values,
        },
        optional={"env": json_values, "commands": st.dictionaries(st.text(), json_values) | json_values},
    )
)
def test_random_json_is_read_or_refused(raw: object) -> None:
    try:
        read_host(parse_recording(raw))
    except UserError as error:
        assert "no recorded host" in error.message


@settings(deadline=None, derandomize=True, max_examples=examples(150))
@given(data=st.binary(max_size=300), cut=st.integers(0, 4000), at=st.integers(0, 4000))
def test_damaged_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int, at: int
) -> None:
    whole = recording_text(record(synthetic("2s/4c/gpu=1"))).encode()
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(whole[:at] + data + whole[at + cut :])
    try:
        read_host(load_recording(path))
    except UserError as error:
        assert "no recorded host" in error.message
