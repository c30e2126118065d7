"""Ranks of one stage on several hosts: the bits of one group, who may come, and that nobody waits in vain. Words for
hosts make hosts of one machine.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest

from homenode.engine.channels.host_ranks import HostRanks, HostRanksName, join_host_ranks
from homenode.engine.channels.tcp_ranks import TcpRanks, hosts_of
from homenode.engine.channels.topics import Group, MemoryRequest, Seated, Values, call, encode_topic
from homenode.engine.executor.rendezvous import Rendezvous
from homenode.errors import PeerError, UserError
from homenode.net.greeting import MAGIC, Credentials, introduce
from homenode.net.settings import NetConfig
from tests.native.rank_threads import ranks as on_one_host
from tests.native.rank_threads import together
from tests.native.steps import same_bits
from tests.paths import ROOT
from tests.peer_keys import shared_keys
from tests.waiting import PATIENCE_S

IP = "127.0.0.1"
GROUP = Group(3, 1)
FRAME = struct.Struct("<IIIIQ")  # number, flags, first line, lines, call: see csrc/host/rank_bridge.cpp
ARRIVED = 2


@pytest.fixture(params=["plain text", pytest.param("TLS", marks=pytest.mark.slow)])
def rendezvous(request: pytest.FixtureRequest) -> Iterator[Rendezvous]:
    made = Rendezvous(IP, PATIENCE_S, NetConfig(peer_keys=str(shared_keys()) if request.param == "TLS" else None))
    made.forget(GROUP.generation)
    yield made
    made.close()


def named(at: Rendezvous, ranks: int, host: str, group: Group = GROUP) -> HostRanksName:
    return HostRanksName(group, ranks, host, IP, at.credentials)


def seat(at: Rendezvous, hosts: list[str], rank: int, timeout_s: float = PATIENCE_S) -> TcpRanks:
    """Rank `rank` of a group with a rank on each of these hosts."""
    return TcpRanks(at.address, named(at, len(hosts), hosts[rank]), rank, timeout_s, 0)


def values_of(rank: int, *shape: int) -> Any:
    rng = np.random.default_rng((rank, *shape))
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(np.float32)


# One value; rows in part of a line; a sum by shares of three ranks and more; more than half of a rank's memory.
SHAPES = [(1, 1), (3, 33), (1, 896), (40, 1000), (2, 7), (600, 1000)]
WIDTHS = [[5, 80, 17, 1], [300, 0, 1, 2], [0, 64, 65, 7000]]


def exchanged(group: Any) -> list[Any]:
    """What a rank has of the same calls in every group."""
    found = []
    for shape in SHAPES:
        values = values_of(group.rank, *shape)
        group.sum(values)
        found.append(values)
    for widths in WIDTHS:
        widths = widths[: group.size]
        found.append(group.gather(values_of(group.rank, 3, widths[group.rank]), widths))
    return found


@pytest.mark.parametrize("hosts", ["aa", "ab", "aab", "aba", "abc", "abba", "abcc"])
def test_the_same_bits_as_on_one_host(rendezvous: Rendezvous, hosts: str) -> None:
    seats = together([lambda r=r: seat(rendezvous, list(hosts), r) for r in range(len(hosts))])
    found = together([lambda end=end: exchanged(end.group) for end in seats])
    alone = on_one_host(len(hosts), 4 << 20)
    wanted = together([lambda group=group: exchanged(group) for group in alone])
    for mine, others in zip(found, wanted, strict=True):
        assert all(same_bits(a, b) for a, b in zip(mine, others, strict=True))
    wanted_sum = reduce(lambda a, b: a + b, [values_of(rank, *SHAPES[1]) for rank in range(len(hosts))])
    assert same_bits(found[0][1], wanted_sum)
    for end in seats:
        end.close()


def test_ranks_of_one_host_have_one_memory_and_no_others(rendezvous: Rendezvous) -> None:
    here, there = named(rendezvous, 3, "a"), named(rendezvous, 3, "b")
    sites = [
        join_host_ranks(here, 0, PATIENCE_S),
        join_host_ranks(here, 1, PATIENCE_S),
        join_host_ranks(there, 2, PATIENCE_S),
    ]
    assert sites[0].address == sites[1].address != sites[2].address
    hosts = hosts_of([site.address for site in sites], sites[0].address)
    assert hosts == [(sites[2].address, [2])]
    with pytest.raises(PeerError, match="does not know this host's address"):
        hosts_of([sites[2].address], sites[0].address)
    for site in sites:
        site.close()


PROCESS = """
import sys, numpy as np
from homenode.engine.channels.host_ranks import HostRanksName
from homenode.engine.channels.tcp_ranks import TcpRanks
from homenode.engine.channels.topics import Group
from homenode.net.greeting import Credentials
engine, host, rank, ranks, timeout_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
name = HostRanksName(Group(3, 1), ranks, host, "127.0.0.1", Credentials.of_line(sys.stdin.readline()))
seat = TcpRanks(engine, name, rank, timeout_s, 0)
values = np.full(100, rank + 1, np.float32)
for _ in range(50):
    values[:] = rank + 1
    seat.group.sum(values)
print(values[0], flush=True)
sys.stdin.readline()
"""


def start(at: Rendezvous, host: str, rank: int, ranks: int, timeout_s: float = PATIENCE_S) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROCESS, at.address, host, str(rank), str(ranks), str(timeout_s)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert process.stdin
    process.stdin.write(at.credentials.line() + "\n")
    process.stdin.flush()
    return process


@pytest.mark.parametrize(("hosts", "victim"), [("abb", 1), ("abb", 2), ("aab", 1), ("aab", 2)])
def test_a_killed_process_ends_the_waits_of_all_hosts(rendezvous: Rendezvous, hosts: str, victim: int) -> None:
    processes = {rank: start(rendezvous, hosts[rank], rank, 3) for rank in (1, 2)}
    mine = seat(rendezvous, list(hosts), 0)
    try:
        values = np.zeros(100, np.float32)
        for _ in range(50):
            values[:] = 1
            mine.group.sum(values)
        assert values[0] == 6
        assert all(process.stdout and process.stdout.readline() == "6.0\n" for process in processes.values())
        failed = threading.Event()

        def wait() -> None:
            with pytest.raises(PeerError):
                mine.group.sum(values)
            failed.set()

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        processes[victim].kill()
        processes[victim].wait(PATIENCE_S)
        if hosts[victim] == "a":  # of one's own host the engine hears, and tells
            mine.leave()
        assert failed.wait(PATIENCE_S / 2), "who waits for a process that is gone is told so before its time is over"
    finally:
        mine.close()
        for process in processes.values():
            process.kill()
            process.communicate(timeout=PATIENCE_S)


def test_nobody_waits_longer_than_told_and_all_hosts_hear_for_whom(rendezvous: Rendezvous) -> None:
    seats = together([lambda r=r: seat(rendezvous, ["a", "b"], r, 3.0) for r in range(2)])
    together([lambda end=end: end.group.sum(np.ones(3, np.float32)) for end in seats])  # all are connected
    begin = time.monotonic()
    with pytest.raises(PeerError, match="rank 1 of 2 did not come within 3 s"):
        seats[0].group.sum(np.ones(3, np.float32))
    with pytest.raises(PeerError, match="rank 1 of 2 did not come within 3 s"):
        for _ in range(2):  # to the first sum the other one had come
            seats[1].group.sum(np.ones(3, np.float32))
    assert time.monotonic() - begin < PATIENCE_S / 2
    for end in seats:
        end.close()


def test_whoever_never_comes_keeps_the_others_no_longer_than_told(rendezvous: Rendezvous) -> None:
    alone = seat(rendezvous, ["a", "b"], 0, 0.3)
    begin = time.monotonic()
    with pytest.raises(PeerError, match=r"rank 1 of 2 did not come within 0\.3 s"):
        alone.group.sum(np.ones(3, np.float32))
    assert time.monotonic() - begin < PATIENCE_S / 2
    alone.close()


def test_leaving_is_heard_on_all_hosts_by_name(rendezvous: Rendezvous) -> None:
    hosts = ["a", "b", "c"]
    seats = together([lambda r=r: seat(rendezvous, hosts, r) for r in range(3)])
    together([lambda end=end: end.group.sum(np.ones(3, np.float32)) for end in seats])  # all are connected

    def wait(end: TcpRanks) -> str:
        with pytest.raises(PeerError) as caught:
            end.group.sum(np.ones(3, np.float32))
        return str(caught.value)

    told = together([lambda: wait(seats[0]), lambda: wait(seats[2]), seats[1].leave])
    assert told == ["rank 1 of 3 left the group", "rank 1 of 3 left the group", None]
    for end in seats:
        end.close()


@pytest.fixture
def site(rendezvous: Rendezvous) -> Iterator[HostRanks]:
    """Of the first of two ranks; the other one is on another host."""
    made = join_host_ranks(named(rendezvous, 2, "a"), 0, PATIENCE_S)
    yield made
    made.close()


def _end_of(sock: socket.socket) -> None:
    """Wait for it."""
    sock.settimeout(PATIENCE_S)
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass


def _over(site: HostRanks) -> str:
    """Why the group is over, once it is."""
    from homenode.compute.native import NativeRankGroup

    group = NativeRankGroup.join(site.memory, 0, PATIENCE_S)
    begin = time.monotonic()
    with pytest.raises(PeerError) as caught:
        while True:
            group.sum(np.ones(1, np.float32))
    assert time.monotonic() - begin < PATIENCE_S / 2
    return str(caught.value)


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.1\r\n\r\n" + bytes(100), bytes(100), MAGIC + bytes(32) + b"\xff" * 40],
    ids=["http", "zeros", "long"],
)
def test_a_stranger_is_sent_away_and_others_are_served(
    rendezvous: Rendezvous, site: HostRanks, words: bytes, unix: bool
) -> None:
    name = named(rendezvous, 2, "a")
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as stranger:
        stranger.connect(name.socket if unix else (IP, int(site.address.rpartition(":")[2])))
        stranger.sendall(words)
        _end_of(stranger)
    again = join_host_ranks(name, 1, PATIENCE_S)
    assert again.address == site.address
    with pytest.raises(PeerError, match="does not know the secret"):
        call(site.address, replace(rendezvous.credentials, secret=b"another"), Values(GROUP, 1), PATIENCE_S)


@pytest.mark.parametrize(
    "topic",
    [MemoryRequest(GROUP, 1), Values(Group(2, 1), 1), Seated(GROUP, 1, 2, ""), Values(GROUP, 2)],
    ids=["share", "before", "else", "rank"],
)
def test_another_topic_is_refused(rendezvous: Rendezvous, site: HostRanks, topic: Any) -> None:
    with call(site.address, rendezvous.credentials, topic, PATIENCE_S) as caller:
        _end_of(caller)


def test_a_rank_comes_once(rendezvous: Rendezvous, site: HostRanks) -> None:
    def one_and_its_end(first: bool) -> Any:
        sock = call(site.address, rendezvous.credentials, Values(GROUP, 1), PATIENCE_S)
        if not first:
            _end_of(sock)
        return sock

    with one_and_its_end(True) as first:
        first.sendall(FRAME.pack(1, ARRIVED, 0, 0, 0))
        # The seat is taken when its first word has come through: a sum of the other rank finds another call there.
        assert "makes other calls" in _over(site)
        with one_and_its_end(False):
            pass


@pytest.mark.parametrize(
    "frame",
    [
        FRAME.pack(2, ARRIVED, 0, 0, 0),
        FRAME.pack(1, ARRIVED, 0, 1 << 31, 0),
        FRAME.pack(1, ARRIVED, (1 << 32) - 1, 1, 0),
        FRAME.pack(1, 0, 32768, 1, 0),
        FRAME.pack(1, 1 << 31, 0, 0, 0),
        FRAME.pack(1, ARRIVED, 0, 4, 0) + bytes(100),
    ],
    ids=["later", "large", "beyond", "next", "flags", "short"],
)
def test_what_no_rank_sends_ends_the_group(rendezvous: Rendezvous, site: HostRanks, frame: bytes) -> None:
    with call(site.address, rendezvous.credentials, Values(GROUP, 1), PATIENCE_S) as wild:
        wild.sendall(frame)
        wild.shutdown(socket.SHUT_WR)
        assert _over(site) == "rank 1 of 2 left the group"


def test_who_begins_to_send_and_stops_is_late(rendezvous: Rendezvous) -> None:
    site = join_host_ranks(named(rendezvous, 2, "a"), 0, 0.3)
    with call(site.address, rendezvous.credentials, Values(GROUP, 1), PATIENCE_S) as slow:
        slow.sendall(FRAME.pack(1, ARRIVED, 0, 4, 0) + bytes(100))
        assert "rank 1 of 2 did not come within" in _over(site)
    site.close()


def test_a_name_that_a_stranger_holds_is_no_memory(rendezvous: Rendezvous) -> None:
    name = named(rendezvous, 2, "a")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(name.socket)
        stranger.listen()
        begin = time.monotonic()
        with pytest.raises(PeerError, match="was not handed over on this host"):
            join_host_ranks(name, 0, 0.3)
        assert time.monotonic() - begin < PATIENCE_S / 2


def test_the_next_rank_makes_the_memory_where_the_keeper_is_gone(rendezvous: Rendezvous) -> None:
    name = named(rendezvous, 2, "a")
    first = join_host_ranks(name, 0, PATIENCE_S)
    first.close()
    second = join_host_ranks(name, 1, PATIENCE_S)
    assert second.address != first.address
    second.close()


def test_a_keeper_hands_memory_over_to_a_caller_with_the_secret_only(rendezvous: Rendezvous, site: HostRanks) -> None:
    name = named(rendezvous, 2, "a")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(name.socket)
        with pytest.raises(PeerError, match="does not know the secret"):
            topic = encode_topic(MemoryRequest(GROUP, 1))
            introduce(sock, "here", secrets.token_bytes(32), topic, time.monotonic() + PATIENCE_S)
    assert name.socket != HostRanksName(GROUP, 2, "a", IP, Credentials(secrets.token_bytes(32))).socket


def test_a_rank_twice_on_one_host_is_refused(rendezvous: Rendezvous) -> None:
    first = seat(rendezvous, ["a", "a"], 0)
    with pytest.raises(UserError, match="rank 0 of a group is taken already"):
        seat(rendezvous, ["a", "a"], 0)
    first.close()


def test_seats_of_an_earlier_generation_are_told_to_nobody(rendezvous: Rendezvous) -> None:
    waiting = call(rendezvous.address, rendezvous.credentials, Seated(GROUP, 0, 2, "127.0.0.1:1"), PATIENCE_S)
    rendezvous.forget(GROUP.generation + 1)
    late = call(rendezvous.address, rendezvous.credentials, Seated(GROUP, 1, 2, "127.0.0.1:2"), PATIENCE_S)
    for sock in (waiting, late):
        with sock:
            sock.settimeout(PATIENCE_S)
            assert sock.recv(100) == b""
