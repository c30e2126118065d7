"""The file of several models: what it may say, what its models become, and how what is wrong is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from homenode.cli.several_models.models_file import read_models, usual_values
from homenode.errors import UserError
from homenode.server.models.model_entry import ModelEntry

FINE = """
[models.coder]
path = "org/coder:Q4_K_M"
aliases = ["code", "c"]
pin = true
on_demand = false
nodes = "0-1"
cpus = [2, 3]
threads = 2
kv-cache-memory = "2GiB"
max_model_len = "8k"
enable-prefix-caching = false
tool-call-parser = "hermes"

[models."org/story teller"]
path = "stories.gguf"
idle_timeout_s = 30
"""


def read(folder: Path, text: str) -> tuple[ModelEntry, ...]:
    file = folder / "models.toml"
    file.write_text(text, encoding="utf-8")
    return read_models([str(file)], usual_values() | {"max_num_seqs": 7})


def test_a_table_has_keys_of_its_own_and_settings_by_their_flags(tmp_path: Path) -> None:
    (tmp_path / "stories.gguf").write_bytes(b"")
    coder, teller = read(tmp_path, FINE)
    assert coder.names == ("coder", "code", "c") == coder.served.served_model_name
    assert (coder.pin, coder.on_demand, coder.nodes, coder.cpus) == (True, False, (0, 1), (2, 3))
    assert coder.engine.model.model == "org/coder:Q4_K_M"
    assert (coder.engine.kv.kv_cache_memory, coder.engine.model.max_model_len) == (2 << 30, 8192)
    assert coder.engine.compute.threads == 2 and coder.served.tool_call_parser == "hermes"
    assert not coder.engine.kv.enable_prefix_caching
    assert (teller.name, teller.pin, teller.on_demand, teller.idle_timeout_s) == ("org/story teller", False, True, 30.0)
    assert teller.engine.model.model == str(tmp_path / "stories.gguf")  # paths begin at the file
    assert coder.engine.scheduler.max_num_seqs == teller.engine.scheduler.max_num_seqs == 7  # of a flag beside it
    assert teller.engine.kv.kv_cache_memory is None


WRONG = {
    '[models.a]\npath = "a"\nencoder_cpus = "9999"': "--encoder-cpus: CPU 9999",
    "[models.a\npath": "line 1",
    "port = 3": "`port` is no table of models",
    "[models]": "there is no model",
    "models = 3": "there is no model",
    "[models]\na = 3": "models.a is no table",
    "[models.a]\npin = true": "models.a: path is missing",
    "[models.a]\npath = 5": "models.a: path is 5",
    '[models.a]\npath = "x"\nkv-cache-memroy = "1MiB"': "kv-cache-memroy.*Did you mean kv-cache-memory",
    '[models.a]\npath = "x"\nkv-cache-memory = "lots"': "models.a: kv-cache-memory: ",
    '[models.a]\npath = "x"\nquantize = "q9"': "models.a: quantize: ",
    '[models.a]\npath = "x"\nthreads = 0': "models.a: threads: 0 is too small",
    '[models.a]\npath = "x"\nthreads = "many"': "models.a: threads: ",
    '[models.a]\npath = "x"\nport = 80': "port is a setting of the server",
    '[models.a]\npath = "x"\nserved-model-name = "b"': "give further names as `aliases`",
    '[models.a]\npath = "x"\npin = 1': "models.a: pin is 1; wanted is true or false",
    '[models.a]\npath = "x"\npin = true\nidle_timeout_s = 5': "models.a: .*pin.*idle_timeout_s",
    '[models.a]\npath = "x"\nidle_timeout_s = -5': "idle_timeout_s is -5",
    '[models.a]\npath = "x"\nidle_timeout_s = "soon"': "models.a: idle_timeout_s: ",
    '[models.a]\npath = "x"\naliases = [3]': "aliases is \\[3\\]",
    '[models.a]\npath = "x"\naliases = ["a"]': "the name 'a' is given twice",
    '[models.a]\npath = "x"\naliases = ["b"]\n[models.b]\npath = "x"': "the name 'b' is of two models, a and b",
    '[models.a]\npath = "x"\ncpus = "3-1"': "models.a: cpus is '3-1'",
    '[models.a]\npath = "x"\nnodes = [true]': "models.a: nodes is ",
    '[models."a\\u0007b"]\npath = "x"': "is not 1 to 200 printable characters",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_told_with_the_file_and_the_model(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=WRONG[text]) as raised:
        read(tmp_path, text)
    assert "models" in raised.value.message


def test_a_folder_has_a_model_in_each_folder_and_file(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    for name in ("tales", "parts", ".hidden", "notes"):
        (folder / name).mkdir(parents=True)
    (folder / "tales" / "config.json").write_text("{}")
    (folder / ".hidden" / "config.json").write_text("{}")
    for file in ("small.gguf", "parts/big-00001-of-00002.gguf", "parts/big-00002-of-00002.gguf", "notes/read.txt"):
        (folder / file).write_bytes(b"")
    for file in ("wide-00001-of-00002.gguf", "wide-00002-of-00002.gguf", "notes.txt"):
        (folder / file).write_bytes(b"")
    found = {entry.name: entry.engine.model.model for entry in read_models([str(folder)], usual_values())}
    assert found == {
        "parts": str(folder / "parts" / "big-00001-of-00002.gguf"),
        "small": str(folder / "small.gguf"),
        "tales": str(folder / "tales"),
        "wide": str(folder / "wide-00001-of-00002.gguf"),
    }
    both = read_models([str(folder / "tales"), str(folder / "small.gguf")], usual_values())
    assert [entry.name for entry in both] == ["tales", "small"]
    for name in ("parts", "small.gguf", "wide-00001-of-00002.gguf", "tales"):
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    with pytest.raises(UserError, match="there is no model"):
        read_models([str(folder)], usual_values())
    (folder / "bell\a.gguf").write_bytes(b"")
    with pytest.raises(UserError, match=r"the name 'bell.*' is not 1 to 200 printable characters"):
        read_models([str(folder)], usual_values())
    with pytest.raises(UserError, match="no such file or folder"):
        read_models([str(tmp_path / "nowhere")], usual_values())
