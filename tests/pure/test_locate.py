"""From a model's name to a path, without a network: local paths, a cache in the Hub's layout, and a Hub that is a
function here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homenode.errors import CapacityError, HomenodeError, HostError, InternalError, UserError
from homenode.model.hub import locate as module
from homenode.model.hub.locate import builtin_model, locate
from tests.checkpoints import make_folder

hub = pytest.importorskip("huggingface_hub")
hub_errors = pytest.importorskip("huggingface_hub.errors")
hub_constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The Hub library is offline and its cache empty, whatever this machine holds."""
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "empty-cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


def cached(cache: Path, repository: str, files: dict[str, bytes], revision: str = "main") -> Path:
    """A repository in the layout of the Hub's cache; returns the snapshot's folder."""
    root = cache / f"models--{repository.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    (root / "refs").mkdir(parents=True)
    (root / "blobs").mkdir()
    (root / "refs" / revision).write_text(COMMIT)
    for number, (name, content) in enumerate(files.items()):
        (root / "blobs" / str(number)).write_bytes(content)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(root / "blobs" / str(number))
    return snapshot


def test_a_local_path_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "org" / "name")
    assert locate(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert locate("org/name") == Path("org/name")  # what is here comes before the Hub
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/org/name") == folder


def test_no_name_is_the_built_in_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.resources, "files", lambda package: tmp_path)
    with pytest.raises(InternalError, match="built-in model is missing"):
        locate(None)
    make_folder(tmp_path / "builtin")
    assert locate(None) == builtin_model() == tmp_path / "builtin"
    assert locate("homenode-builtin") == locate("builtin") == builtin_model()
    monkeypatch.chdir(tmp_path)  # in which there is a folder of that name
    assert locate("builtin") == Path("builtin")


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "./nothing",
        "/nothing/at/all",
        "a/b/c",
        "~no-such-user/x",
        "models/x.gguf",
        "a b/c",
        "org/",
        "",
        "x\0y",
        "y" * 5000,
        "org/name:",
    ],
)
def test_names_that_lead_nowhere(name: str) -> None:
    with pytest.raises(UserError, match="no such file or folder, and no Hub id; give a folder") as caught:
        locate(name)
    assert caught.value.param == "model"


def test_a_cached_model_is_found_offline(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "made")
    snapshot = cached(tmp_path / "cache", "org/name", {file.name: file.read_bytes() for file in folder.iterdir()})
    found = locate("org/name", offline=True, cache_dir=tmp_path / "cache", progress=False)
    assert found == snapshot
    from homenode.model.checkpoint.index import open_checkpoint

    # Its files are links out of the folder, and that is fine.
    assert open_checkpoint(found).spec.architecture == "llama"
    assert locate("org/name", cache_dir=tmp_path / "cache", progress=False) == snapshot  # HF_HUB_OFFLINE alone


def test_a_cached_revision(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, "org/name", {"config.json": b"{}", "model.safetensors": b""}, revision="v1")
    assert locate("org/name", revision="v1", offline=True, cache_dir=tmp_path) == snapshot
    with pytest.raises(UserError, match=r"org/name \(revision v2\): not \(completely\) in the Hub cache"):
        locate("org/name", revision="v2", offline=True, cache_dir=tmp_path)


def test_offline_and_not_cached(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"not \(completely\) in the Hub cache of this machine, and offline; fetch it once with"
    ):
        locate("org/name", offline=True, cache_dir=tmp_path)


GGUFS = {
    "m-Q4_K_M.gguf": b"",
    "m-Q8_0.gguf": b"",
    "m-IQ4_XS.gguf": b"",
    "big/m-F16-00001-of-00002.gguf": b"",
    "big/m-F16-00002-of-00002.gguf": b"",
    "mmproj-F16.gguf": b"",
}


@pytest.mark.parametrize(
    ("pick", "file"),
    [("Q4_K_M", "m-Q4_K_M.gguf"), ("q8_0", "m-Q8_0.gguf"), ("F16", "big/m-F16-00001-of-00002.gguf"),
        ("m-IQ4_XS.gguf", "m-IQ4_XS.gguf"),
     ("big/m-F16-00001-of-00002.gguf", "big/m-F16-00001-of-00002.gguf")],
)  # fmt: skip
def test_gguf_files_of_a_repository(pick: str, file: str, tmp_path: Path) -> None:
    snapshot = cached(tmp_path, "org/name", GGUFS)
    assert locate(f"org/name:{pick}", offline=True, cache_dir=tmp_path) == snapshot / file


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/name:Q5_0", "none of its GGUF files is a Q5_0"),
        ("org/name:Q4_K", "none of its GGUF files is a Q4_K "),
        ("org/name:other.gguf", "it has no file 'other.gguf'"),
        ("org/name:../../../refs/main.gguf", "it has no file"),
        ("org/name:m", "several files are m: big/m-F16-00001-of-00002.gguf, m-IQ4_XS.gguf"),
        ("org/name", "holds GGUF files: pick one, such as org/name:big/m-F16-00001-of-00002.gguf"),
    ],
)
def test_picks_that_miss(name: str, message: str, tmp_path: Path) -> None:
    cached(tmp_path, "org/name", GGUFS)
    with pytest.raises(UserError, match=message):
        locate(name, offline=True, cache_dir=tmp_path)


def test_a_repository_of_other_files(tmp_path: Path) -> None:
    cached(tmp_path, "org/name", {"config.json": b"{}", "pytorch_model.bin": b""})
    with pytest.raises(UserError, match=r"wanted config\.json and \.safetensors files"):
        locate("org/name", offline=True, cache_dir=tmp_path)


def stub(monkeypatch: pytest.MonkeyPatch, result: Any) -> list[tuple[str, dict[str, Any]]]:
    """Replaces the Hub library's download by one that notes its arguments and returns or raises `result`."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def snapshot_download(repository: str, **options: Any) -> str:
        calls.append((repository, options))
        if isinstance(result, BaseException):
            raise result
        return str(result)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    return calls


def matches(name: str, options: dict[str, Any]) -> bool:
    from huggingface_hub.utils import filter_repo_objects

    return bool(
        list(
            filter_repo_objects(
                [name], allow_patterns=options["allow_patterns"], ignore_patterns=options["ignore_patterns"]
            )
        )
    )


def test_what_is_asked_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = stub(monkeypatch, make_folder(tmp_path))
    assert locate("org/name", revision="main", token="secret", cache_dir=tmp_path / "c") == tmp_path
    repository, options = calls[0]
    assert repository == "org/name"
    assert {k: options[k] for k in ("revision", "token", "local_files_only", "cache_dir")} == {
        "revision": "main", "token": "secret", "local_files_only": False, "cache_dir": tmp_path / "c",
    }  # fmt: skip
    wanted = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "model.safetensors",
              "model.safetensors.index.json", "model-00001-of-00002.safetensors", "merges.txt")  # fmt: skip
    unwanted = (
        "pytorch_model.bin",
        "consolidated.00.pth",
        "consolidated.safetensors",
        "original/model.safetensors",
        "onnx/config.json",
        "m.gguf",
        "x.py",
    )
    assert all(matches(name, options) for name in wanted) and not any(matches(name, options) for name in unwanted)


def test_only_the_picked_files_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = stub(monkeypatch, tmp_path)
    for pick in ("m-00001-of-00002.gguf", "q4_k_m"):
        with pytest.raises(UserError):
            locate(f"org/name:{pick}")
    assert [matches(f"m-0000{i}-of-0000{n}.gguf", calls[0][1]) for i, n in ((1, 2), (2, 2), (1, 3))] == [
        True,
        True,
        False,
    ]
    assert matches("a/x-Q4_K_M.gguf", calls[1][1]) and not matches("x-Q4_K_S.gguf", calls[1][1])


def test_the_bars_of_the_library_are_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = stub(monkeypatch, make_folder(tmp_path))
    locate("org/name", progress=False)
    for _ in calls[0][1]["tqdm_class"](range(3), desc="files", name="huggingface_hub.snapshot_download"):
        pass
    assert capsys.readouterr().err == ""


class Response:
    """As much of an HTTP response as the library's errors look at."""

    def __init__(self, status: int) -> None:
        self.status_code = status
        self.headers: dict[str, str] = {}
        self.request = None


def failure(kind: str, status: int = 404) -> BaseException:
    error = getattr(hub_errors, kind)
    made = error.__new__(error)
    Exception.__init__(made, "https://huggingface.co/x?token=hf_secret")
    made.response = Response(status)
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            failure("GatedRepoError", 403),
            UserError,
            "accept its terms at https://huggingface.co/org/name and give a token",
        ),
        (
            failure("RepositoryNotFoundError", 401),
            UserError,
            "no such repository on the Hub, and no such path here; check the spelling",
        ),
        (failure("RevisionNotFoundError"), UserError, "no such revision"),
        (failure("HfHubHTTPError", 403), UserError, "refuses access"),
        (failure("HfHubHTTPError", 500), UserError, "HTTP status 500; try again later"),
        (failure("LocalEntryNotFoundError"), UserError, "cannot be reached"),
        (failure("HFValidationError"), UserError, "not a name the Hub accepts"),
        (OSError(28, "No space left on device"), CapacityError, "disk of the cache is full .No space left on device"),
        (OSError(13, "Permission denied"), HostError, "Permission denied.*permissions"),
        (RuntimeError("proxy"), UserError, r"fetching failed \(RuntimeError: proxy\); check the connection"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_failures_say_what_to_do(
    error: BaseException, kind: type[HomenodeError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    stub(monkeypatch, error)
    with pytest.raises(kind, match=message) as caught:
        locate("org/name")
    assert "org/name" in caught.value.message and "hf_secret" not in caught.value.message
