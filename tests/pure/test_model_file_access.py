"""Which files of a model's folder are read: regular ones, and of links those that lead to where a model's
text may lie.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.cli.output.report import print_error, print_note, show_controls
from homenode.engine.config import EngineConfig
from homenode.engine.model_path.locate import locate_model
from homenode.errors import CheckpointError, HostError
from homenode.model.checkpoint.vocabulary_file import read_vocabulary_text
from homenode.model.files_read import FilesRead
from homenode.model.formats.bounded_files import file_size, read_json, read_text, refuse_links
from homenode.model.hub.locate import builtin_model
from homenode.model.tokenizer.loader import load_tokenizer
from homenode.model.weights.model_files import ModelFiles

_TEXT = '{"secret": 1}'


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


# What lies where a file of the model is looked for -> what the error says of it.
SPECIAL = {
    "a pipe": (os.mkfifo, "not a regular file"),
    "a folder": (Path.mkdir, "not a regular file"),
    "a link to a device": (_link("/dev/zero"), "outside of the model's folder"),
    "a link to another process's memory": (_link("/proc/self/mem"), "outside of the model's folder"),
    "a link to itself": (_link("config.json"), "cannot be opened"),
    "a link to nothing": (_link("missing.json"), "cannot be opened"),
    "a link to a pipe of the folder": (_link("pipe"), "not a regular file"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_regular_file_is_refused_without_waiting(kind: str, tmp_path: Path) -> None:
    make, message = SPECIAL[kind]
    os.mkfifo(tmp_path / "pipe")
    make(tmp_path / "config.json")
    for read in (lambda file: read_json(file, 1000), lambda file: read_text(file, 1000)):
        with pytest.raises(CheckpointError, match=message) as caught:
            read(tmp_path / "config.json")
        assert str(tmp_path / "config.json") in caught.value.message


@pytest.mark.parametrize("kind", ["a pipe", "a folder"])
def test_weights_are_regular_files_too(kind: str, tmp_path: Path) -> None:
    SPECIAL[kind][0](tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        file_size(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_nothing_of_a_tokenizer_is_read_around_these_rules(name: str, tmp_path: Path) -> None:
    """Also not to see beforehand whether it has a template: this file tells the size 0 and fails when it is read."""
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(builtin_model() / file, tmp_path / file)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("/proc/self/mem")
    with pytest.raises(CheckpointError, match=f"{name}: link: seen a link to .*, outside of the model's folder"):
        load_tokenizer(tmp_path)


# Where the text file lies and where its link stands, both below one folder -> whether the link is followed.
LINKS = {
    ("model/other.json", "model/config.json"): True,
    ("model/..data/config.json", "model/config.json"): True,
    ("elsewhere/config.json", "model/config.json"): False,
    ("model-2/config.json", "model/config.json"): False,
    ("repo/blobs/abc", "repo/snapshots/0123/config.json"): True,
    ("repo/blobs/abc", "repo/snapshots/0123/text/config.json"): True,
    ("repo/blobs/abc", "repo/0123/config.json"): False,
    ("secret.json", "repo/snapshots/0123/config.json"): False,
    ("repo-2/blobs/abc", "repo/snapshots/0123/config.json"): False,
}


@pytest.mark.parametrize(("target", "link"), LINKS)
def test_a_text_file_may_only_link_inside_of_its_model(target: str, link: str, tmp_path: Path) -> None:
    (tmp_path / "repo" / "blobs").mkdir(parents=True)
    for path in (tmp_path / target, tmp_path / link):
        path.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / target).write_text(_TEXT)
    (tmp_path / link).symlink_to(tmp_path / target)
    assert read_text(tmp_path / link, 1000, any_target=True) == _TEXT
    assert file_size(tmp_path / link) == len(_TEXT)
    if LINKS[target, link]:
        assert read_text(tmp_path / link, 1000) == _TEXT
        return
    with pytest.raises(CheckpointError, match="outside of the model's folder") as caught:
        read_text(tmp_path / link, 1000)
    assert "secret" not in caught.value.message.replace("secret.json", "")


def test_a_folder_that_is_itself_a_link_is_a_model_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "config.json").write_text(_TEXT)
    (tmp_path / "name").symlink_to("real")
    assert read_json(tmp_path / "name" / "config.json", 1000) == {"secret": 1}


def test_where_links_are_forbidden_each_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "config.json").write_text(_TEXT)
    refuse_links(tmp_path / "real")
    (tmp_path / "name").symlink_to("real")
    (tmp_path / "real" / "model.safetensors").symlink_to("config.json")
    for model, named in ((tmp_path / "name", "name"), (tmp_path / "real", "model.safetensors")):
        with pytest.raises(CheckpointError, match=f"{named}: file: seen a link.*--no-links"):
            refuse_links(model)


def test_a_link_in_a_folder_of_weights_is_followed_unless_links_are_forbidden(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(builtin_model())
    assert locate_model(EngineConfig.of(str(link), {})).model.path == str(link)
    with pytest.raises(CheckpointError, match="--no-links"):
        locate_model(EngineConfig.of(str(link), {"links": False}))


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--check-config", "MODEL"),
        ("serve", "--check-config", "--tokenizer", "MODEL"),
        ("generate", "--prompt", "x", "MODEL"),
        ("chat", "MODEL"),
        ("chat", "--tokenizer", "MODEL"),
    ],
    ids=" ".join,
)
def test_no_links_holds_for_every_command_and_for_the_tokenizer(words: tuple[str, ...], tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(builtin_model())
    command = [str(link) if word == "MODEL" else word for word in words]
    result = CliRunner().invoke(cli, [*command, "--no-links"], input="")
    assert result.exit_code == 2, result.output
    assert f"{link}: file: seen a link" in " ".join(result.stderr.split())


def test_a_text_that_a_terminal_would_obey_is_shown_instead() -> None:
    assert show_controls("plain é 中\n\ttext") == "plain é 中\n\ttext"
    hostile = "".join(chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)])
    shown = show_controls(hostile)
    assert not any(c != "\n" and c != "\t" and not c.isprintable() for c in shown)
    assert show_controls("\x1b[31m\x07\x9b") == r"\x1b[31m\x07\x9b"


def test_errors_and_notes_show_what_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    """What a template raises or a special token is called is in them as the file has it."""
    print_error(CheckpointError("the template says \x1b[31mred\x07"))
    print_note("the token \x1b]0;title\x07 is not known")
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and "\x07" not in shown
    assert r"says \x1b[31mred\x07" in shown and r"token \x1b]0;title\x07 is" in shown


def test_an_error_on_the_command_line_holds_nothing_that_a_terminal_would_obey(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "homenode", "generate", f"{tmp_path}/\x1b[31m\x1b]0;title\x07", "--prompt", "x"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and r"\x1b[31m" in ran.stderr
    assert "\x1b" not in ran.stderr and "\x07" not in ran.stderr


@pytest.mark.parametrize("moment", ["opened", "read"])
def test_a_refused_look_at_a_file_of_weights_is_said_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    (path := tmp_path / "model.safetensors").write_bytes(b"x")
    with ModelFiles() as files:
        if moment == "read":
            files.open(path)
        refuse_looks_at(path, monkeypatch)
        with pytest.raises(HostError, match=str(path)):
            files.open(path)
            files.check()


def test_a_refused_look_at_a_vocabulary_is_said_with_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "tokenizer.json").write_text("{}")
    refuse_looks_at(path, monkeypatch)
    with pytest.raises(HostError, match=str(tmp_path)):
        read_vocabulary_text(tmp_path, FilesRead())


def refuse_looks_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = os.fstat

    def refuse(descriptor: int) -> os.stat_result:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == path:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return look(descriptor)

    monkeypatch.setattr(os, "fstat", refuse)
