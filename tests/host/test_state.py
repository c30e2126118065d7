"""The state folder: where it is, whom it trusts, what becomes of damaged files, and its locks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from homenode.errors import HostError, UserError
from homenode.host.bind.base.state import State, open_state
from homenode.host.bind.base.temporary import temporary_folder


def test_the_variable_names_the_folder(tmp_path: Path) -> None:
    state = open_state({"HOMENODE_STATE_DIR": str(tmp_path / "here"), "XDG_RUNTIME_DIR": str(tmp_path)})
    assert state.folder == tmp_path / "here"
    assert state.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("count", range(4))
def test_the_first_place_that_can_be_written_to_is_taken(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last `count` places; those before are on a read-only file system, with what was there before."""
    own = f"homenode-{os.geteuid()}"
    run = {"run": "homenode"} if os.geteuid() == 0 else {}
    places = [tmp_path / a / b for a, b in {"runtime": "homenode", **run, "named": own, "usual": own}.items()]
    for place in places:
        place.mkdir(0o700, parents=True)
    writable, granted = places[len(places) - count :], os.access

    def access(path: Path, mode: int) -> bool:
        return any(path in (place, place.parent) for place in writable) and granted(path, mode)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr("homenode.host.bind.base.temporary._USUAL", (tmp_path / "usual",))
    env = {"XDG_RUNTIME_DIR": str(tmp_path / "runtime"), "TMPDIR": str(tmp_path / "named")}
    if count:
        assert open_state(env, tmp_path / "run").folder == writable[0]
    else:
        with pytest.raises(HostError, match=r"there is no folder for the state: .*HOMENODE_STATE_DIR"):
            open_state(env, tmp_path / "run")


def test_the_working_directory_is_no_place_for_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is another one for the next command."""
    monkeypatch.setattr("homenode.host.bind.base.temporary._USUAL", ())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HostError, match="there is no folder for the state"):
        open_state({"TMPDIR": "."}, tmp_path / "run")
    with pytest.raises(HostError, match="TMPDIR"):
        temporary_folder()
    assert list(tmp_path.iterdir()) == []


def test_without_the_variable_the_runtime_folder_is_taken(tmp_path: Path) -> None:
    assert open_state({"XDG_RUNTIME_DIR": str(tmp_path)}).folder == tmp_path / "homenode"


def test_a_runtime_folder_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    folder = open_state({"XDG_RUNTIME_DIR": str(tmp_path / "gone")}, run).folder
    assert folder == (run / "homenode" if os.geteuid() == 0 else folder)
    assert "gone" not in str(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder that belongs to somebody else")
def test_a_runtime_folder_of_the_user_before_sudo_is_passed_over(tmp_path: Path) -> None:
    theirs, run = tmp_path / "theirs", tmp_path / "run"
    theirs.mkdir()
    run.mkdir()
    os.chown(theirs, 12345, 12345)
    assert open_state({"XDG_RUNTIME_DIR": str(theirs)}, run).folder == run / "homenode"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder that belongs to somebody else")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(UserError, match="belongs to user 12345, not 0"):
        open_state({"HOMENODE_STATE_DIR": str(tmp_path)})


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UserError, match="is a link"):
        open_state({"HOMENODE_STATE_DIR": str(tmp_path / "link")})


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UserError, match="chmod go-w"):
        open_state({"HOMENODE_STATE_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("relative/place", "not an absolute path"),
        ("/proc/no/such", "no folder /proc/no"),
        ("/proc/version", "not a folder"),
    ],
)
def test_a_place_that_cannot_be_is_named(place: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        open_state({"HOMENODE_STATE_DIR": place})


def test_a_value_comes_back_and_nothing_is_left_behind(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.save("bindings/7-9.json", {"masks": {"7": "0-3"}})
    assert state.load("bindings/7-9.json") == {"masks": {"7": "0-3"}}
    assert state.names("bindings") == ("7-9.json",)
    assert state.names("nowhere") == ()
    state.remove("bindings/7-9.json")
    state.remove("bindings/7-9.json")
    assert state.load("bindings/7-9.json") is None


def test_a_value_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.save("one.json", 1)
    with pytest.raises(TypeError):
        state.save("one.json", {"value": object()})
    assert state.read("one.json").value == 1
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def test_a_folder_that_went_away_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"cannot write .*HOMENODE_STATE_DIR"):
        State(tmp_path / "gone" / "deep").save("one.json", 1)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b" " * (5 << 20)],
    ids=["empty", "cut", "bytes", "deep", "long", "large"],
)
def test_a_damaged_file_counts_as_not_there_and_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "one.json").write_bytes(content)
    loaded = State(tmp_path).read("one.json")
    assert loaded.value is None
    assert [(finding.severity, finding.code) for finding in loaded.findings] == [("warning", "state_unreadable")]
    assert str(tmp_path / "one.json") in loaded.findings[0].message
    assert (tmp_path / "one.json").read_bytes() == content, "it stays until the holder of the lock puts it aside"


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}")
    (tmp_path / "one.json").symlink_to(tmp_path / "other")
    assert State(tmp_path).read("one.json").findings


def test_a_lock_that_is_held_ends_at_the_deadline(tmp_path: Path) -> None:
    state = State(tmp_path)
    with (
        state.locked("claims"),
        pytest.raises(HostError, match=r"claims.lock is held by another command for over 0.05 s"),
        state.locked("claims", 0.05),
    ):
        pass
    with state.locked("claims", 0.05):
        pass


def test_a_lock_is_got_when_its_holder_leaves(tmp_path: Path) -> None:
    state, inside, order = State(tmp_path), threading.Event(), []

    def first() -> None:
        with state.locked("claims"):
            inside.set()
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(5)
    with state.locked("claims", 5):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_the_lock_of_a_killed_holder_is_free(tmp_path: Path) -> None:
    code = (
        f"import time; from pathlib import Path; from homenode.host.bind.base.state import State\nwith "
        f"State(Path({str(tmp_path)!r})).locked('claims'):\n    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
        with State(tmp_path).locked("claims", 5):
            pass
