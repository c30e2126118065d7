"""Logical CPUs read from small recorded trees: what is online, what shares what, how fast it is."""

from __future__ import annotations

import pytest

from homenode.host.discovery.read import read_host
from homenode.host.topology.facts import FactReader
from homenode.host.topology.source import RecordedSource

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"


def tree(files: dict[str, str], machine: str = "x86_64") -> RecordedSource:
    """A machine with these files; a path without a leading slash lies below /sys/devices/system/cpu."""
    return RecordedSource(
        machine, {path if path.startswith("/") else f"{CPU}/{path}": text for path, text in files.items()}
    )


def cpus_of(files: dict[str, str], machine: str = "x86_64") -> dict[int, tuple[int | None, ...]]:
    """(core, socket, die, cluster, l3) by CPU."""
    host = read_host(tree(files, machine), accelerators=False)
    return {cpu.id: (cpu.core, cpu.socket, cpu.die, cpu.cluster, cpu.l3) for cpu in host.cpus}


def capacities_of(files: dict[str, str], machine: str = "x86_64") -> list[int]:
    return [cpu.capacity for cpu in read_host(tree(files, machine), accelerators=False).cpus]


@pytest.mark.parametrize(
    "files",
    [
        {"online": "0-1,4\n"},
        {
            "cpu0/topology/core_id": "0",
            "cpu1/online": "1",
            "cpu3/online": "0",
            "cpu4/online": "1",
            "cpufreq/boost": "1",
            "cpuidle/x": "",
        },
        {f"{NODE}/node0/cpulist": "0-1", f"{NODE}/node1/cpulist": "4"},
        {f"{NODE}/node0/cpumap": "00000003", f"{NODE}/node1/cpumap": "00000010"},
        {"/proc/self/status": "Cpus_allowed:\t13\nCpus_allowed_list:\t0-1,4\n"},
        {"online": "junk", "/proc/self/status": "Cpus_allowed_list:\t0-1,4"},
    ],
    ids=["list", "folders", "node lists", "node masks", "affinity", "junk in the list"],
)
def test_online_cpus_come_from_the_first_that_tells(files: dict[str, str]) -> None:
    assert [cpu.id for cpu in read_host(tree(files), accelerators=False).cpus] == [0, 1, 4]


def test_a_host_that_tells_nothing_is_empty_and_says_so() -> None:
    host = read_host(tree({}), accelerators=False)
    assert (host.cpus, host.nodes, host.offline, host.allowance.cpus) == ((), (), (), ())
    assert "no_online_cpus" in [note.code for note in host.notes]


@pytest.mark.parametrize(
    ("files", "offline"),
    [
        (
            {"online": "0-2", "present": "0-3", "possible": "0-255"},
            (3,),
        ),  # places for CPUs that are not plugged in are no CPUs
        ({"online": "0-2,4", "possible": "0-5"}, (3, 5)),
        ({"online": "0-3"}, ()),
    ],
)
def test_offline_cpus(files: dict[str, str], offline: tuple[int, ...]) -> None:
    assert read_host(tree(files), accelerators=False).offline == offline


def test_without_topology_every_cpu_is_a_core_of_its_own() -> None:
    assert cpus_of({"online": "0-1"}) == {0: (0, 0, 0, None, None), 1: (1, 0, 0, None, None)}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("core_cpus_list", "{0},{1}"),
        ("thread_siblings_list", "{0},{1}"),
        ("core_cpus", "mask"),
        ("thread_siblings", "mask"),
    ],
)
def test_siblings_in_every_form_the_kernel_has_used(name: str, form: str) -> None:
    files = {"online": "0-3"}
    for cpu in range(4):
        low = cpu % 2
        text = f"00000000,{1 << low | 1 << low + 2:08x}" if form == "mask" else form.format(low, low + 2)
        files[f"cpu{cpu}/topology/{name}"] = text
    assert {cpu: facts[0] for cpu, facts in cpus_of(files).items()} == {0: 0, 1: 1, 2: 0, 3: 1}


def test_a_core_is_named_by_its_lowest_online_cpu() -> None:
    files = {
        "online": "1-3",
        **{f"cpu{cpu}/topology/thread_siblings_list": f"{cpu % 2},{cpu % 2 + 2}" for cpu in range(1, 4)},
    }
    assert {cpu: facts[0] for cpu, facts in cpus_of(files).items()} == {1: 1, 2: 2, 3: 1}


def test_a_cpu_that_its_own_sibling_list_forgets_stays_in_its_core() -> None:
    assert cpus_of({"online": "0-1", "cpu0/topology/core_cpus_list": "1"})[0][0] == 0


def socketed(packages: dict[int, str], files: dict[str, str] | None = None) -> dict[str, str]:
    ids = {f"cpu{cpu}/topology/physical_package_id": package for cpu, package in packages.items()}
    return {"online": f"0-{len(packages) - 1}", **ids, **(files or {})}


def test_sockets_as_the_kernel_numbers_them_and_minus_one_is_zero() -> None:
    assert [facts[1] for facts in cpus_of(socketed({0: "0", 1: "8", 2: "36", 3: "-1"})).values()] == [0, 8, 36, 0]


def test_wrong_lists_of_older_kernels_do_not_merge_sockets() -> None:
    files = socketed(
        {0: "0", 1: "1"}, {"cpu0/topology/core_siblings_list": "0-1", "cpu1/topology/core_siblings_list": "0-1"}
    )
    assert [facts[1] for facts in cpus_of(files).values()] == [0, 1]


def test_a_socket_is_read_once_and_holds_for_its_members() -> None:
    asked: list[str] = []

    class Counting(RecordedSource):
        def read(self, path: str) -> str | None:
            asked.append(path)
            return super().read(path)

    files = socketed(dict.fromkeys(range(64), "3"), {"cpu0/topology/package_cpus_list": "0-63"})
    source = Counting("x86_64", tree(files).files)
    assert {cpu.socket for cpu in read_host(source, accelerators=False).cpus} == {3}
    assert len([path for path in asked if path.endswith("physical_package_id")]) <= 2


def test_dies() -> None:
    files = socketed(dict.fromkeys(range(4), "0"), {f"cpu{cpu}/topology/die_id": str(cpu // 2) for cpu in range(4)})
    assert [facts[2] for facts in cpus_of(files).values()] == [0, 0, 1, 1]


def test_clusters_of_several_cores_are_kept_and_those_of_one_are_not() -> None:
    clusters = {f"cpu{cpu}/topology/cluster_cpus_list": f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(4)}
    assert [facts[3] for facts in cpus_of({"online": "0-3", **clusters}, "aarch64").values()] == [0, 0, 2, 2]
    cores = {f"cpu{cpu}/topology/core_cpus_list": f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(4)}
    assert [facts[3] for facts in cpus_of({"online": "0-3", **clusters, **cores}).values()] == [None] * 4


def cache(cpu: int, index: int, level: int, kind: str, shared: str, file: str = "shared_cpu_list") -> dict[str, str]:
    folder = f"cpu{cpu}/cache/index{index}"
    return {f"{folder}/level": str(level), f"{folder}/type": kind, f"{folder}/{file}": shared}


def test_the_last_level_cache_is_the_highest_for_data_from_level_three_on() -> None:
    files = {"online": "0-3"}
    for cpu in range(4):
        pair = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
        files |= (
            cache(cpu, 0, 1, "Data", str(cpu))
            | cache(cpu, 1, 4, "Instruction", "0-3")
            | cache(cpu, 2, 2, "Unified", pair)
        )
        files |= cache(cpu, 3, 3, "Unified", pair)
    assert [facts[4] for facts in cpus_of(files).values()] == [0, 0, 2, 2]


def test_a_cpu_without_a_third_level_has_none() -> None:
    files = (
        {"online": "0-1"}
        | cache(0, 2, 2, "Unified", "0")
        | cache(1, 2, 2, "Unified", "1")
        | cache(1, 3, 3, "Unified", "2", "shared_cpu_map")
    )
    assert [facts[4] for facts in cpus_of(files).values()] == [None, 1]


def test_a_cache_shared_with_nobody_is_the_cpus_own() -> None:
    files = (
        {"online": "0-1"} | cache(0, 4, 3, "Unified", "00000000", "shared_cpu_map") | cache(1, 4, 3, "Unified", "junk")
    )
    assert [facts[4] for facts in cpus_of(files).values()] == [0, None]


def test_capacity_of_unequal_arm_cores() -> None:
    files = {"online": "0-3", **{f"cpu{cpu}/cpu_capacity": "1024" if cpu > 1 else "446" for cpu in range(4)}}
    assert capacities_of(files, "aarch64") == [446, 446, 1024, 1024]


def test_the_fastest_core_counts_1024_whatever_the_firmware_says() -> None:
    files = {"online": "0-1", "cpu0/cpu_capacity": "500", "cpu1/cpu_capacity": "1000"}
    assert capacities_of(files, "aarch64") == [512, 1024]


def hybrid(**figures: tuple[str, str]) -> dict[str, str]:
    """CPUs 0-1 share a large core, 2-3 are small ones; a figure for the large and for the small ones, by file (`__` for
    a slash).
    """
    files = {"online": "0-3", "/sys/devices/cpu_core/cpus": "0-1", "/sys/devices/cpu_atom/cpus": "2-3"}
    files |= {"cpu0/topology/core_cpus_list": "0-1", "cpu1/topology/core_cpus_list": "0-1"}
    for name, (large, small) in figures.items():
        files |= {f"cpu{cpu}/{name.replace('__', '/')}": large if cpu < 2 else small for cpu in range(4)}
    return files


@pytest.mark.parametrize(
    ("files", "small"),
    [
        (hybrid(cpu_capacity=("1024", "800"), acpi_cppc__highest_perf=("60", "30")), 800),
        (
            hybrid(cpu_capacity=("1024", "1024"), acpi_cppc__highest_perf=("60", "30")),
            512,
        ),  # what Linux says while SMT is on
        (hybrid(cpufreq__cpuinfo_max_freq=("4800000", "3600000")), 768),
        (hybrid(), 512),
        (hybrid(acpi_cppc__highest_perf=("0", "junk")), 512),
    ],
    ids=["capacity", "performance", "frequency", "kind only", "junk"],
)
def test_capacity_of_x86_parts_with_two_kinds_of_cores(files: dict[str, str], small: int) -> None:
    assert capacities_of(files) == [1024, 1024, small, small]


def two_cores(frequencies: tuple[str, str], performances: tuple[str, str]) -> dict[str, str]:
    files = {f"cpu{cpu}/cpufreq/cpuinfo_max_freq": text for cpu, text in enumerate(frequencies)}
    return {
        "online": "0-1",
        **files,
        **{f"cpu{cpu}/acpi_cppc/highest_perf": text for cpu, text in enumerate(performances)},
    }


def test_turbo_preferences_of_equal_x86_cores_are_no_capacities() -> None:
    assert capacities_of(two_cores(("4600000", "3900000"), ("46", "39"))) == [1024, 1024]


def test_two_kinds_of_cores_without_folders_for_them_are_told_by_frequency() -> None:
    assert capacities_of(two_cores(("5000000", "3900000"), ("64", "32"))) == [1024, 512]


def test_more_than_a_thousand_cpus() -> None:
    half = 2048
    files = {"online": f"0-{2 * half - 1}"}
    files |= {f"cpu{cpu}/topology/core_cpus_list": f"{cpu},{cpu + half}" for cpu in range(half)}
    host = read_host(tree(files | {"/proc/self/status": f"Cpus_allowed_list:\t1000-{half + 1000}"}), accelerators=False)
    assert len(host.cores) == half
    assert host.cpu_by_id[half + 1000].core == 1000
    assert len(host.allowance.physical_cpus) == half


def test_what_makes_no_sense_is_noted_with_its_file() -> None:
    reader = FactReader(tree({"online": "0-3", "cpu0/topology/die_id": "seven"}))
    assert reader.number(f"{CPU}/cpu0/topology/die_id") is None
    assert reader.number(f"{CPU}/absent") is None
    assert [(note.severity, "die_id" in note.message, bool(note.remedy)) for note in reader.notes] == [
        ("warning", True, True)
    ]
