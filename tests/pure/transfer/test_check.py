"""What settings of KV transfer are refused for: each alone, by name and flag, and all of them at once."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homenode.net.settings import NetConfig
from homenode.transfer.setup import surroundings
from homenode.transfer.setup.checks import EngineFacts, check_transfer
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.setup.surroundings import ACL, HCCL, Surroundings, read_surroundings

LACKING = (("nixl", "the nixl package is not installed here"), ("hccl", "here is no NPU and no libhccl.so"))
HERE = Surroundings(lacking=LACKING)
ENGINE = EngineFacts(block_bytes=80 << 10, block_size=64, memory=1 << 30)
OUTSIDE = Surroundings(loopback=False)
KEYS, PLAIN = NetConfig(peer_keys="folder"), NetConfig(peer_plain_text=True)


def said(
    here: Surroundings = HERE, engine: EngineFacts = ENGINE, net: NetConfig | None = None, **settings: Any
) -> list[str]:
    return [problem.message for problem in check_transfer(TransferConfig(**settings), here, engine, net)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"enable_pd": False, "pd_role": "sender", "pd_delay_pull": True},
        {"pd_role": "sender"},
        {"pd_role": "receiver", "pd_pull_mode": True, "pd_delay_pull": True, "transfer_channel": "tcp"},
        {"pd_role": "sender", "pd_pull_mode": True, "pd_use_cpu_offload": True, "pd_cpu_buffer_size": 8 << 20},
        {"pd_role": "receiver", "pd_peer_init_port": (7300,), "pd_peer_alloc_port": (7400,)},
        {"pd_role": "sender", "pd_alloc_fail_backoff_ttl": 0.0, "pd_pull_done_port": (0,), "local_cpu": True},
    ],
)
def test_what_works(settings: dict[str, Any]) -> None:
    assert said(**settings) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"enable_pd": True}, ["enable_pd", "pd_role"]),
        ({"pd_pull_mode": True}, ["pd_pull_mode", "pd_role"]),
        ({"pd_role": "receiver", "pd_delay_pull": True}, ["pd_delay_pull", "pd_pull_mode"]),
        ({"pd_role": "sender", "pd_use_cpu_offload": True}, ["pd_use_cpu_offload", "pd_pull_mode"]),
        ({"pd_role": "receiver", "pd_pull_mode": True, "pd_use_cpu_offload": True}, ["pd_use_cpu_offload", "sender"]),
        ({"pd_role": "sender", "pd_cpu_buffer_size": 1 << 20}, ["pd_cpu_buffer_size", "pd_use_cpu_offload"]),
        ({"pd_role": "sender", "pd_alloc_fail_backoff_ttl": -1.0}, ["pd_alloc_fail_backoff_ttl", "-1"]),
        ({"pd_role": "sender", "pd_alloc_fail_backoff_ttl": float("nan")}, ["pd_alloc_fail_backoff_ttl"]),
        ({"pd_role": "sender", "pd_room_wait": -1.0}, ["pd_room_wait", "-1"]),
        ({"pd_role": "sender", "pd_room_wait": float("nan")}, ["pd_room_wait"]),
        ({"pd_role": "sender", "pd_pull_pending_ttl": float("inf")}, ["pd_pull_pending_ttl"]),
        ({"pd_role": "sender", "pd_pull_pending_ttl": 0.0}, ["pd_pull_pending_ttl"]),
        ({"pd_role": "sender", "pd_pull_backpressure_reserve_pct": 100.0}, ["pd_pull_backpressure_reserve_pct"]),
        ({"pd_role": "sender", "pd_pull_backpressure_reserve_pct": -0.1}, ["pd_pull_backpressure_reserve_pct"]),
        ({"pd_role": "sender", "pd_pull_backpressure_reserve_pct": float("nan")}, ["pd_pull_backpressure_reserve_pct"]),
        ({"pd_role": "sender", "transfer_channel": "carrier_pigeon"}, ["transfer_channel", "shm", "tcp", "nixl"]),
        ({"pd_role": "sender", "transfer_channel": "hccl"}, ["transfer_channel", "hccl", "no NPU", "shm", "tcp"]),
        ({"pd_role": "sender", "transfer_channel": "nixl"}, ["transfer_channel", "nixl", "not installed"]),
        ({"pd_role": "sender", "pd_buffer_device": "npu:3"}, ["pd_buffer_device", "npu:3", "cpu"]),
        ({"pd_role": "sender", "pd_buffer_device": "cuda"}, ["pd_buffer_device", "cuda"]),
        ({"pd_role": "sender", "pd_buffer_device": "tpu"}, ["pd_buffer_device", "tpu"]),
        ({"pd_role": "receiver", "pd_peer_alloc_port": (1, 2)}, ["pd_peer_alloc_port", "tensor_parallel_size"]),
        (
            {"pd_role": "receiver", "pd_peer_init_port": (7300,), "pd_peer_alloc_port": (7300,)},
            ["pd_peer_init_port", "pd_peer_alloc_port", "7300"],
        ),
        (
            {"pd_role": "sender", "pd_peer_alloc_port": (7400,), "pd_pull_done_port": (7400,)},
            ["pd_pull_done_port", "pd_peer_alloc_port", "7400"],
        ),
        ({"pd_role": "sender", "pd_peer_alloc_port": (65500,)}, ["pd_pull_done_port", "65600", "pd_peer_alloc_port"]),
        ({"pd_role": "sender", "pd_buffer_size": 64 << 10}, ["pd_buffer_size", "64KiB", "80KiB", "block"]),
        (
            {"pd_role": "sender", "pd_pull_mode": True, "pd_use_cpu_offload": True, "pd_cpu_buffer_size": 1},
            ["pd_cpu_buffer_size", "80KiB"],
        ),
        (
            {"pd_role": "sender", "pd_pull_mode": True, "pd_use_cpu_offload": True, "pd_cpu_buffer_size": 2 << 30},
            ["pd_cpu_buffer_size", "2GiB", "1GiB"],
        ),
        ({"pd_role": "sender", "pd_proxy_host": "127.0.0.1"}, ["pd_proxy_host", "pd_proxy_port"]),
    ],
)
def test_refused_alone(settings: dict[str, Any], words: list[str]) -> None:
    found = said(**settings)
    assert len(found) == 1, found
    for word in words:
        assert word in found[0]
    assert "--" in found[0]  # the flag as well


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (EngineFacts(workers=("cpu", "torch:cuda:0")), ["pd_role", "--stage-devices torch:cuda:0"]),
        (EngineFacts(workers=("cpu",), executor="ray"), ["pd_role", "--executor ray"]),
        (EngineFacts(backend="reference"), ["--backend native", "reference"]),
        (EngineFacts(kv_shapes=2), ["pd_role", "keys and values of 2 shapes"]),
    ],
)
def test_engines_that_cannot(engine: EngineFacts, words: list[str]) -> None:
    found = said(engine=engine, pd_role="sender")
    assert len(found) == 1, found
    assert all(word in found[0] for word in words)


def test_several_workers_are_no_trouble() -> None:
    several = EngineFacts(tensor_parallel_size=2, workers=("cpu", "cpu"))
    assert said(engine=several) == []
    assert said(engine=several, pd_role="sender", pd_pull_done_port=(7600, 7601)) == []
    (found,) = said(engine=several, pd_role="sender", pd_pull_done_port=(7600,))
    assert "pd_pull_done_port" in found and "2 ranks" in found


def test_ports_are_of_all_engines_or_of_none() -> None:
    several = EngineFacts(tensor_parallel_size=2, workers=("cpu", "cpu"), engines=2)
    assert said(engine=several, pd_role="receiver") == []
    assert said(engine=several, pd_role="receiver", pd_peer_alloc_port=(7600, 7601, 7602, 7603)) == []
    (found,) = said(engine=several, pd_role="receiver", pd_peer_alloc_port=(7600, 7601))
    assert "pd_peer_alloc_port" in found and "2 engines, 4 in all" in found
    nodes = EngineFacts(tensor_parallel_size=2, workers=("cpu", "cpu"), engines=None)  # as many as there are nodes
    assert said(engine=nodes, pd_role="sender", pd_pull_done_port=(7600, 7601, 7602, 7603)) == []
    (found,) = said(engine=nodes, pd_role="sender", pd_pull_done_port=(7600, 7601, 7602))
    assert "pd_pull_done_port" in found and "of each engine" in found


def test_each_engine_has_its_ports() -> None:
    whole = TransferConfig(pd_role="receiver", pd_peer_init_port=(1, 2, 3, 4), pd_peer_alloc_port=(5, 6, 7, 8))
    first, second = (whole.of_engine(number, 2) for number in range(2))
    assert (first.pd_peer_init_port, first.pd_peer_alloc_port, first.done_ports) == ((1, 2), (5, 6), (105, 106))
    assert (second.pd_peer_init_port, second.pd_peer_alloc_port, second.pd_pull_done_port) == ((3, 4), (7, 8), ())


def test_what_several_workers_cannot() -> None:
    several = EngineFacts(workers=("cpu", "cpu"))
    assert said(engine=several, pd_role="receiver", pd_pull_mode=True, pd_in_place=True) == []
    (found,) = said(Surroundings(("shm", "tcp", "nixl")), engine=several, pd_role="receiver", transfer_channel="nixl")
    assert "nixl" in found and "several workers" in found


def test_off_this_host_a_secret_is_needed_and_no_address_for_all() -> None:
    # Nothing listens on that address.
    assert said(OUTSIDE, pd_role="sender", transfer_channel="shm", pd_peer_host="10.0.0.1") == []
    far = {"pd_role": "sender", "transfer_channel": "tcp", "pd_peer_host": "10.0.0.1"}
    (found,) = said(OUTSIDE, **far, pd_secret="s" * 16)
    assert "in clear" in found and "homenode keys make" in found and "--peer-plain-text" in found
    assert said(OUTSIDE, net=KEYS, **far) == []
    (found,) = said(OUTSIDE, net=PLAIN, **far)
    assert "pd_secret (--pd-secret)" in found
    (found,) = said(OUTSIDE, net=PLAIN, **far, pd_secret="short")
    assert "pd_secret" in found and "short" not in found
    assert said(OUTSIDE, net=PLAIN, **far, pd_secret="s" * 16) == []
    (found,) = said(OUTSIDE, pd_role="sender", transfer_channel="tcp", pd_peer_host="0.0.0.0", pd_secret="s" * 16)
    assert "pd_peer_host" in found and "published" in found


@pytest.mark.parametrize("channel", ["nixl", "hccl"])
def test_pages_that_a_library_moves_leave_this_host_by_the_flag_that_says_so_alone(channel: str) -> None:
    here = replace(OUTSIDE, channels=(*OUTSIDE.channels, channel))
    far = {"pd_role": "sender", "transfer_channel": channel, "pd_peer_host": "10.0.0.1", "pd_secret": "s" * 16}
    (found,) = said(here, net=KEYS, **far)
    assert "past TLS" in found and "--transfer-channel tcp" in found
    assert said(here, net=PLAIN, **far) == []


def test_all_that_the_field_s_file_asks_for_and_this_host_lacks_is_told_at_once() -> None:
    found = said(
        Surroundings(lacking=LACKING, address_problem="no such address"),
        EngineFacts(block_bytes=80 << 10, block_size=64, memory=1 << 30, tensor_parallel_size=2),
        pd_role="sender",
        enable_pd=True,
        transfer_channel="hccl",
        pd_pull_mode=True,
        pd_delay_pull=True,
        pd_pull_done_port=(7600, 7601),
        pd_use_cpu_offload=True,
        pd_cpu_buffer_size=21474836480,
        pd_peer_host="<hostIP>",
        pd_proxy_host="<hostIP>",
        pd_proxy_port=8500,
        pd_buffer_size=32225472,
        pd_buffer_device="npu",
    )
    told = "\n".join(found)
    assert all(word in told for word in ("hccl", "npu", "pd_peer_host", "pd_cpu_buffer_size"))
    assert len(found) == 4


def test_delayed_reads_over_hccl_want_the_accelerator_s_memory() -> None:
    found = said(
        Surroundings(channels=("shm", "tcp", "hccl")),
        pd_role="receiver",
        transfer_channel="hccl",
        pd_pull_mode=True,
        pd_delay_pull=True,
    )
    assert any("pd_delay_pull" in text and "pd_buffer_device" in text for text in found)


@pytest.mark.parametrize("npus", [0, 2])
@pytest.mark.parametrize("libraries", [(), (HCCL,), (ACL,), (HCCL, ACL)])
def test_hccl_is_refused_with_what_is_truly_missing(
    tmp_path: Path, npus: int, libraries: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never with a package to install: what is missing is a device, or libraries of the vendor's toolkit."""
    monkeypatch.setattr(surroundings, "_FOLDERS", ())
    for number in range(npus):
        (tmp_path / f"davinci{number}").touch()
    for name in libraries:
        (tmp_path / name).touch()
    config = TransferConfig(pd_role="sender", transfer_channel="hccl")
    variables = {"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"}
    here = read_surroundings(config, tmp_path, lambda module: False, variables)
    missing = {name for name in (HCCL, ACL) if name not in libraries}
    assert ("hccl" in here.channels) == (npus > 0 and not missing)
    for device in ("cpu", "npu", "npu:1", "npu:2"):
        found = "\n".join(said(here, pd_role="sender", transfer_channel="hccl", pd_buffer_device=device))
        assert "not installed" not in found and "pip install" not in found
        assert {name for name in (HCCL, ACL) if name in found} == missing
        assert ("/dev/davinci" in found) == (npus == 0)
        if npus and not missing:
            assert ("npu:0 to npu:1" in found) == (device == "npu:2") and bool(found) == (device == "npu:2")
        else:
            assert "main memory" in found and "shm on one host or tcp between hosts" in found


def test_a_buffer_in_an_npu_goes_with_hccl_alone() -> None:
    here = Surroundings(channels=("shm", "tcp", "hccl"), devices=(("npu", 2),))
    for channel in ("shm", "tcp"):
        (found,) = said(here, pd_role="sender", transfer_channel=channel, pd_buffer_device="npu:1")
        assert "keeps its KV in main memory" in found and "2 of that kind" in found
    assert said(here, pd_role="sender", transfer_channel="hccl", pd_buffer_device="npu:1") == []


def test_facts_of_this_machine(tmp_path: Path) -> None:
    for name in ("davinci0", "davinci1", "davinci_manager", "nvidia0", "nvidiactl"):
        (tmp_path / name).touch()
    config = TransferConfig(pd_role="receiver", transfer_channel="tcp")
    found = read_surroundings(config, tmp_path, lambda module: module == "nixl", {"LD_LIBRARY_PATH": str(tmp_path)})
    assert (found.count("npu"), found.count("cuda"), found.count("tpu")) == (2, 1, 0)
    assert {"shm", "tcp"} <= set(found.channels)
    assert "nixl" in found.channels and [name for name, _ in found.lacking] == ["hccl"]
    assert (found.loopback, found.address_problem, found.busy_ports) == (True, "", ())


def test_addresses_that_are_none_and_those_of_other_machines() -> None:
    assert read_surroundings(TransferConfig(pd_peer_host="<hostIP>")).address_problem
    assert read_surroundings(TransferConfig(pd_peer_host="192.0.2.1")).address_problem  # reserved for documentation
    assert read_surroundings(TransferConfig(pd_peer_host="a" * 300)).address_problem


def test_a_port_that_something_else_has() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        config = TransferConfig(pd_role="receiver", transfer_channel="tcp", pd_peer_alloc_port=(port,))
        found = read_surroundings(config)
        assert found.busy_ports == (port,)
        (problem,) = [problem.message for problem in check_transfer(config, found, ENGINE)]
        assert "pd_peer_alloc_port" in problem and str(port) in problem
        # Shared memory takes names; the ports keep their meaning only.
        assert read_surroundings(TransferConfig(pd_role="receiver", pd_peer_alloc_port=(port,))).busy_ports == ()
