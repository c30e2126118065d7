"""The conversation with irqbalance, against a server that parses what irqbalance parses."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.errors import HostError
from homenode.host.bind.interrupts.irq_bans import Balance, unban
from homenode.host.bind.interrupts.irqbalance import Irqbalance, find_irqbalance, parse_setup, read_bans, set_bans
from tests.examples import examples
from tests.host.fake_irqbalance import fake_irqbalance


def proc(folder: Path, names: dict[str, str]) -> Path:
    for pid, name in names.items():
        (folder / pid).mkdir()
        (folder / pid / "comm").write_text(name + "\n")
    (folder / "irq").mkdir()
    (folder / "77").mkdir()  # a process that has just ended
    return folder


def test_it_is_found_by_its_name_and_looked_for_where_every_version_listens(tmp_path: Path) -> None:
    found = find_irqbalance(proc(tmp_path, {"1": "systemd", "812": "irqbalance", "813": "irqbalance-ui"}))
    assert found is not None
    assert found.pid == 812
    assert found.addresses == ("/run/irqbalance/irqbalance812.sock", b"\0irqbalance812.sock", b"\0" * 108)


def test_none_is_none(tmp_path: Path) -> None:
    assert find_irqbalance(proc(tmp_path, {"1": "systemd"})) is None


@pytest.mark.parametrize(("buffer", "room"), [(500, 500), (16384, 16384)])
def test_the_present_bans_and_the_room_for_more_are_learnt_in_one_question(buffer: int, room: int) -> None:
    with fake_irqbalance(buffer=buffer, banned=[43, 2753]) as fake:
        bans = read_bans(fake.daemon)
        assert (bans.irqs, bans.command_bytes) == ({43, 2753}, room)
        assert len(fake.commands) == 1


@pytest.mark.parametrize("buffer", [500, 16384])
def test_ours_are_added_to_those_of_others_and_taken_away_again(buffer: int) -> None:
    with fake_irqbalance(buffer=buffer, banned=[0, 43]) as fake:
        balance = Balance.ask(fake.daemon, (43, 2753, 2754))
        assert balance.fresh == {2753, 2754}
        report = balance.ban()
        assert (report.ok, report.steps[0].outcome) == (True, "done")
        assert fake.banned == [0, 43, 2753, 2754]
        fake.banned.append(50)  # somebody else adds one meanwhile
        assert unban(fake.daemon, balance.fresh).steps[0].outcome == "undone"
        assert fake.banned == [0, 43, 50]


def test_the_last_one_taken_away_leaves_none() -> None:
    with fake_irqbalance(banned=[40]) as fake:
        unban(fake.daemon, frozenset({40, 41}))
        assert fake.banned == []
        assert fake.commands[-1] == b"settings ban irqs NONE"


def test_what_is_banned_already_is_not_said_again() -> None:
    with fake_irqbalance(banned=[40, 41]) as fake:
        report = Balance.ask(fake.daemon, (40, 41)).ban()
        assert report.steps[0].outcome == "done"
        assert len(fake.commands) == 1


def test_a_list_that_an_old_version_would_cut_is_not_sent() -> None:
    irqs = range(2000, 2200)
    with fake_irqbalance(buffer=500, banned=[43]) as fake:
        report = Balance.ask(fake.daemon, tuple(irqs)).ban()
        assert fake.banned == [43]
        (finding,) = report.findings
        assert (finding.severity, finding.code) == ("warning", "irqbalance_not_told")
        assert "--banirq=2000" in finding.remedy
    with fake_irqbalance(buffer=16384, banned=[43]) as fake:
        assert Balance.ask(fake.daemon, tuple(irqs)).ban().findings == ()
        assert fake.banned == [43, *irqs]


@pytest.mark.parametrize(
    "sent", [{"obeys": 12345}, {"reply": b"SLEEP 10 IRQ 5 LOAD 0 DIFF"}, {"reply": b"HTTP/1.1 400 Bad Request"}]
)
def test_one_that_refuses_or_makes_no_sense_keeps_its_bans_and_costs_a_warning(sent: dict[str, object]) -> None:
    with fake_irqbalance(banned=[43], **sent) as fake:
        report = Balance.ask(fake.daemon, (40,)).ban()
        assert (report.ok, report.steps[0].outcome, report.findings[0].code) == (True, "skipped", "irqbalance_not_told")
        assert fake.banned == [43]


def test_one_that_never_answers_costs_the_deadline_and_no_more() -> None:
    with fake_irqbalance(mute=True) as fake:
        start = time.monotonic()
        with pytest.raises(HostError, match=r"did not answer within 0\.2 s"):
            read_bans(fake.daemon, 0.2)
        assert 0.2 <= time.monotonic() - start < 10


def test_one_without_a_socket_is_said_so() -> None:
    with pytest.raises(HostError, match="no socket here"):
        read_bans(Irqbalance(os.getpid(), ("/run/no-such-folder/irqbalance1.sock", b"\0no-such-irqbalance.sock")))


def test_a_socket_that_another_process_holds_is_not_spoken_to() -> None:
    with fake_irqbalance(banned=[43]) as fake:
        with pytest.raises(HostError, match=f"held by process {os.getpid()}"):
            read_bans(replace(fake.daemon, pid=1))
        assert not any(fake.commands)


def test_a_command_that_was_not_read_to_its_end_is_no_success() -> None:
    with fake_irqbalance(buffer=500) as fake, pytest.raises(HostError, match="did not read the whole command"):
        set_bans(fake.daemon, range(2000, 2200), command_bytes=16384)


@given(st.sets(st.integers(0, 99999), max_size=60))
@settings(deadline=None, derandomize=True, max_examples=examples(25))
def test_whatever_is_set_is_read_back(irqs: set[int]) -> None:
    with fake_irqbalance(buffer=16384) as fake:
        set_bans(fake.daemon, irqs, 16384)
        assert read_bans(fake.daemon).irqs == irqs


@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(st.sampled_from(["SLEEP", "IRQ", "LOAD", "DIFF", "CLASS", "BANNED", "5", "-1", "x"])).map(" ".join),
    )
)
@settings(deadline=None, derandomize=True, max_examples=examples(300))
def test_any_answer_is_understood_or_refused(text: str) -> None:
    try:
        assert all(irq >= 0 for irq in parse_setup(text))
    except HostError as error:
        assert "irqbalance answered" in error.message
