"""The commands as a person calls them: results on stdout, one sentence and exit code 2 for what the person can mend."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import tokenizers

from homenode.cli.main import main
from homenode.compute.native import LEVELS, available_levels
from homenode.numa_policy import NumaPolicy
from tests.checkpoints import make_folder
from tests.paths import STORIES, needs_data
from tests.quantised_folders import FORMS, write_quantised


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `homenode ARGUMENTS`."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), out, err


@needs_data
@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("source", [STORIES, STORIES / "stories260K-f32.gguf"], ids=["folder", "gguf"])
def test_generate_the_golden_text_at_every_level(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, source: Path, isa: str
) -> None:
    if isa not in available_levels():
        pytest.skip(f"this machine has no {isa}")
    monkeypatch.setenv("HOMENODE_ISA", isa)
    case = json.loads((STORIES / "golden.json").read_text())[1]
    code, out, err = run(
        capsys, "generate", str(source), "--prompt", case["prompt"], "--max-tokens", "60", "--ignore-eos", "--json"
    )
    found = json.loads(out)
    assert (code, found["token_ids"], found["prompt_token_ids"]) == (0, case["greedy_ids"][:60], case["prompt_ids"]), (
        err
    )
    assert found["finish_reason"] == "length"
    assert found["timings"]["total_s"] > 0


@needs_data
@pytest.mark.parametrize("policy", NumaPolicy)
def test_generate_the_golden_text_under_every_numa_policy(
    capsys: pytest.CaptureFixture[str], policy: NumaPolicy
) -> None:
    case = json.loads((STORIES / "golden.json").read_text())[1]
    asked = ("--numa", policy.value, "--prompt", case["prompt"], "--max-tokens", "40", "--ignore-eos", "--json")
    code, out, err = run(capsys, "generate", str(STORIES), *asked)
    assert (code, json.loads(out)["token_ids"]) == (0, case["greedy_ids"][:40]), err


def test_numa_that_cannot_be_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (
        ("--numa", "shard", "--numa-nodes", "999"),
        ("--numa", "shard", "--numa-mirror-tensors", "nosuch*"),
        ("--numa-nodes", "0"),
    ):
        for command in (("generate", "--prompt", "x"), ("bench", "model"), ("serve", "--check-config")):
            code, out, err = run(capsys, *command, *wrong)
            assert (code, out) == (2, ""), err
            assert wrong[-1] in err or wrong[0] in err


def test_generate_prints_text_and_chat_answers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "generate", "--prompt", "What is 2 + 3?", "--chat", "--max-tokens", "20")
    assert (code, "5" in out) == (0, True), err


def test_chat_answers_until_it_is_told_to_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["Hello", "", "/new", "What is 2 + 3?", "/exit"])
    monkeypatch.setattr("builtins.input", lambda *_: next(lines))
    code, out, err = run(capsys, "chat", "--temperature", "0")
    assert code == 0, err
    assert "ello" in out
    assert "5" in out


@pytest.fixture
def brief_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings of the machine from little memory: what they are is not looked at."""
    monkeypatch.setattr("homenode.cli.benchmarks.options._READ_BYTES", 16 << 20)


@pytest.mark.usefixtures("brief_ceilings")
def test_bench_reports_what_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys,
        "bench",
        "model",
        "--prompt-tokens",
        "32",
        "--gen-tokens",
        "4",
        "--batch",
        "1,2",
        "--context",
        "40",
        "--repeat",
        "1",
        "--phases",
        "--json",
    )
    assert code == 0, err
    results = json.loads(out)["results"]
    assert [(r["test"], r["batch"], r["tokens"], r["context"]) for r in results] == [
        ("prefill", 1, 32, 0),
        ("decode", 1, 4, 40),
        ("decode", 2, 4, 40),
    ]
    for r in results:
        assert r["tok_s"] > 0
        assert r["ceiling_tok_s"] > 0
        assert 0 < r["fraction"] < 50  # a model this small comes from a cache
        assert 0 < r["cpu_seconds"] < 600
        assert r["limit"] in ("read", "multiply")
        assert len(r["runs"]) + len(r["discarded"]) <= 3 * 2
        assert r["ceilings"].keys() == {"read_gb_s", "int8_gops", "int6_gops", "bf16_gops", "f32_gops"}
        assert len(r["placement"]["before"]["round_trip_ns"]) == len(json.loads(out)["backend"]["cpus"]) - 1
        phases = {p["name"]: p for p in r["phases"]}
        assert {"qkv", "attention", "o", "gate_up", "down", "lm_head"} <= phases.keys()
        assert sum(p["share"] for p in phases.values()) == pytest.approx(1)
        assert all(
            p["fraction"] > 0 for name, p in phases.items() if name in ("qkv", "o", "gate_up", "down", "lm_head")
        )
    one, two = ({k: v for k, v in r["step"].items() if k.endswith("_operations")} for r in results[1:])
    assert sum(one.values()) > 0
    assert two == {kind: 2 * done for kind, done in one.items()}


@pytest.mark.usefixtures("brief_ceilings")
def test_bench_shows_where_a_step_goes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "bench", "model", "--prompt-tokens", "0", "--gen-tokens", "3", "--repeat", "1", "--phases"
    )
    assert code == 0, err
    assert "where a step of decode, batch 1" in out
    assert all(phase in out for phase in ("qkv", "attention", "gate_up", "lm_head"))


def test_check_config_and_show_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "serve", "--check-config")[0] == 0
    code, out, _ = run(capsys, "serve", "--show-config", "--port", "1234", "--api-key", "hush")
    assert (code, "1234" in out, "flag" in out, "hush" in out) == (0, True, True, False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate", "/nowhere/at/all", "--prompt", "x"), "no such file"),
        (("generate", "--prompt", "x", "--max-tokens", "0"), "--max-tokens"),
        (("generate", "--prompt", "x", "--threads", "100000"), "--threads"),
        (("generate", "--prompt", "x", "--isa", "mmx"), "mmx"),
        (("generate",), "--prompt"),
        (("bench", "model", "--prompt-tokens", "100000"), "context"),
        (("bench", "model", "--batch", "1,x"), "1,x"),
        (("bench", "model", "--prompt-tokens", "0", "--gen-tokens", "0"), "nothing to measure"),
        (("serve", "--check-config", "--max-model-len", "100000"), "--max-model-len"),
        (("serve", "--check-config", "--kv-cache-memory", "1KiB"), "--kv-cache-memory"),
        (
            ("serve", "--check-config", "--max-num-batched-tokens", "128", "--no-enable-chunked-prefill"),
            "--max-num-batched-tokens",
        ),
        (("serve", "--check-config", "--data-parallel-size", "1000"), "--data-parallel-size 1000"),
        (("serve", "--data-parallel-size", "0"), "--data-parallel-size"),
        (("serve", "--api-server-count", "0"), "--api-server-count"),
        (
            (
                "serve",
                "--data-parallel-size",
                "3",
                "--pd-role",
                "receiver",
                "--transfer-channel",
                "tcp",
                "--pd-peer-alloc-port",
                "0,0",
            ),
            "each of 3 engines, 3 in all",
        ),
        (("serve", "--port", "70000"), "65535"),
        (("serve", "--sevred-model-name", "x"), "No such option"),
        (("sreve",), "sreve"),
        (("serve", "--chat-template", "/nowhere", "--check-config"), "--chat-template"),
        (("serve", "--encoder-cpus", "9999", "--check-config"), "--encoder-cpus"),
    ],
)
def test_what_the_user_can_mend_ends_with_2_and_one_clear_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert words in err + out
    assert "Traceback" not in err


def test_chat_without_a_template_says_so_before_loading(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "chat", str(make_folder(tmp_path)))
    assert (code, "tokenizer.json" in err or "chat template" in err) == (2, True)


@pytest.fixture(scope="module")
def quantised_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with quantised matrices, a vocabulary and a chat template."""
    folder = tmp_path_factory.mktemp("quantised")
    write_quantised(folder, FORMS["awq"])
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"t{n}": n for n in range(128)}, unk_token="t0"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    return folder


@pytest.mark.parametrize("setting", [("--quantize", "q8_0"), ("--dtype", "float32"), ()], ids=" ".join)
@pytest.mark.parametrize("command", ["serve", "generate", "chat"])
def test_a_setting_that_does_nothing_to_quantised_matrices_is_told(
    command: str,
    setting: tuple[str, ...],
    quantised_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rest = {"serve": ("--check-config",), "generate": ("--prompt", "t7", "--max-tokens", "1"), "chat": ()}[command]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, _, err = run(capsys, command, str(quantised_model), *rest, *setting, "--max-model-len", "16")
    assert code == 0, err
    told = [line for line in err.splitlines() if "is for float matrices" in line]
    assert [" ".join(setting) in line and "quantised in the file" in line for line in told] == [True] * bool(setting)
