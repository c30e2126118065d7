"""Flags of other programs: each is taken, always so, told or refused by its name, and none is lost."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import click
import pytest

from homenode.cli.main import cli
from homenode.engine.config import EngineConfig, own_flags
from homenode.equivalents.equivalent import AlwaysSo, Equivalent, FollowingWords, ModelName, NoEffect, NotOffered, Taken
from homenode.equivalents.keywords import translate_keywords
from homenode.equivalents.table import PROGRAMS, known_flags
from homenode.equivalents.translation import OwnFlag, flag_values, translate
from homenode.equivalents.variables import FLAGS, read_variables
from homenode.errors import UserError
from tests.paths import ROOT
from tools.equivalents_table import PAGE, page


def flags_of(command: str) -> dict[str, OwnFlag]:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    options = [param for param in found.params if isinstance(param, click.Option)]
    return {
        flag: OwnFlag(not param.is_flag, param.multiple)
        for param in options
        for flag in (*param.opts, *param.secondary_opts)
    }


SERVE, GENERATE, CHAT = flags_of("serve"), flags_of("generate"), flags_of("chat")
ROWS = [row for rows in PROGRAMS.values() for row in rows]


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.equivalents_table"


def test_a_name_stands_in_one_row() -> None:
    counts = Counter(flag for row in ROWS for flag, _ in row.flags)
    assert [flag for flag, count in counts.items() if count > 1] == []


def test_what_is_taken_is_a_setting_of_ours() -> None:
    for row in ROWS:
        for meaning in (row.meaning, *row.values.values()):
            if not isinstance(meaning, Taken):
                continue
            own = SERVE.get(meaning.flag) or GENERATE.get(meaning.flag) or CHAT.get(meaning.flag)
            assert own is not None, meaning
            has_value = meaning.value is not None or all(count is not FollowingWords.NONE for _, count in row.flags)
            assert has_value or not own.takes_value, meaning


def test_flags_and_pages_that_a_row_tells_of_exist() -> None:
    for row in ROWS:
        for meaning in (row.meaning, *row.values.values()):
            text = " ".join(str(getattr(meaning, name, "")) for name in ("why", "instead", "note"))
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9](?![\w-])", text)) - {"--pd"}
            assert named <= SERVE.keys() | GENERATE.keys() | {"--json", "--help"}, text
            assert all((ROOT / page).is_file() for page in re.findall(r"docs/[\w/-]+\.md", text)), text


@pytest.mark.parametrize("own", [SERVE, GENERATE, CHAT], ids=["serve", "generate", "chat"])
def test_a_flag_of_our_own_keeps_its_meaning(own: dict[str, OwnFlag]) -> None:
    for flag in own.keys() & known_flags().keys():
        meaning = known_flags()[flag].meaning("an ordinary value")
        switched_off = Taken(flag.replace("--no-", "--"), "off")
        assert meaning is None or meaning in (Taken(flag), switched_off), flag


@pytest.mark.parametrize("own", [SERVE, GENERATE, CHAT], ids=["serve", "generate", "chat"])
def test_no_flag_of_the_table_is_lost(own: dict[str, OwnFlag]) -> None:
    """Each is words of our own flags alone, or a line that names it; only what is always so is silent."""
    for flag, known in known_flags().items():
        for value in (None,) if known.values is FollowingWords.NONE else ("x", *known.row.values):
            words = [flag] if value is None else [flag, value]
            made = translate(words, own, takes_model=False)
            meaning = known.meaning(value or "")
            lines = [*made.told, *made.refused]
            assert all(line.startswith(flag) for line in lines), lines
            assert len(made.refused) == isinstance(meaning, NotOffered), words
            if isinstance(meaning, NoEffect):
                assert len(made.told) == 1 and not made.words
            elif isinstance(meaning, AlwaysSo | NotOffered):
                assert not made.words and not made.told
            elif isinstance(meaning, ModelName):
                assert made.words == [value]
            elif isinstance(meaning, Taken):
                assert bool(flag_values(made.words, own)) == (meaning.flag in own) or meaning.value == "off"
                assert made.told if meaning.note or meaning.flag not in own else not made.told
            else:
                assert made.words == words


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("-tp 2 -pp=3", "--tensor-parallel-size 2 --pipeline-parallel-size 3"),
        ("--tensor_parallel_size 2", "--tensor-parallel-size 2"),
        ("--max_model_len=8k", "--max-model-len 8k"),
        ("M --served-model-name a b --port 1", "M --served-model-name a,b --port 1"),
        ("--served-model-name a M", "--served-model-name a M"),
        ("--served-model-name a --port 1 M", "--served-model-name a --port 1 M"),
        ("--served-model-name a b -m M", "--served-model-name a,b M"),
        ("--api-key k1 k2 -- M", "--api-key k1 -- M k2"),
        ("--seed -1 -c 256", "--seed -1 --max-model-len 256"),
        ("--disable-radix-cache", "--no-enable-prefix-caching"),
        ("--no-cache-prompt", "--no-enable-prefix-caching"),
        ("--disaggregation-mode prefill", "--pd-role sender"),
        ("--ep-size 4", "--enable-expert-parallel"),
        ("--numa DISTRIBUTE", "--numa shard"),
        ("--numa mirror", "--numa mirror"),
        ("--chunked-prefill-size -1", "--no-enable-chunked-prefill"),
        ("--chunked-prefill-size 2048", "--max-num-batched-tokens 2048"),
        ("-b 256", "--max-num-batched-tokens 256"),
        ("--scheduling-policy priority", ""),
        ("--nonsense 3 -z", "--nonsense 3 -z"),
        ("-ctk q8_0 -ctv q8_0", "--kv-cache-dtype int8 --kv-cache-dtype int8"),
        ("-O3 --compilation-config.level 3 -cc.mode=3", ""),
    ],
)
def test_words_as_ours(given: str, wanted: str) -> None:
    made = translate(given.split(), SERVE)
    assert made.refused == []
    words, named = made.words, wanted.split()
    assert sorted(words) == sorted(named) if "--" in named else words == named


@pytest.mark.parametrize(
    "given",
    [
        "--max-num-partial-prefills 4",
        "--max-long-partial-prefills 2",
        "--long-prefill-token-threshold 512",
        "-ub 128",
        "--ubatch-size 128",
        "--max-prefill-tokens 4096",
        "--enable-mixed-chunk",
    ],
)
def test_what_bounds_prompts_elsewhere_is_told_with_what_bounds_them_here(given: str) -> None:
    made = translate(given.split(), SERVE)
    assert (made.words, made.refused) == ([], [])
    (line,) = made.told
    assert line.startswith(given.split()[0]) and "--step-time" in line


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("-m M -p Hello -n 2 --temp 0.5", "M --prompt Hello --max-tokens 2 --temperature 0.5"),
        ("-p Hello -r a -r b -no-cnv", "--prompt Hello --stop a --stop b"),
        ("-p Hello -cnv", "--prompt Hello --chat"),
        ("-p=-x", "--prompt -x"),
        ("--prompt -x", "--prompt -x"),
    ],
)
def test_words_of_one_prompt(given: str, wanted: str) -> None:
    made = translate(given.split(), GENERATE)
    assert (made.words, made.refused) == (wanted.split(), [])


@pytest.mark.parametrize(
    "given",
    [
        "-tp 2 --tensor-parallel-size 4",
        "-ctk q8_0 -ctv bf16",
        "M -m N",
        "-m M --model-path N",
        "-c",
        "-c 256 --context-length 512",
    ],
)
def test_what_contradicts_is_refused(given: str) -> None:
    assert len(translate(given.split(), SERVE).refused) == 1


def test_a_switch_with_a_value() -> None:
    assert translate(["--embeddings=false"], SERVE).words == []
    assert translate(["--embeddings=true"], SERVE).words == ["--runner", "pooling"]
    assert translate(["--enable-lora=false"], SERVE).refused == []


def test_given_names_are_kept() -> None:
    made = translate(["-tp", "2", "--max-model-len", "5"], SERVE)
    assert made.given_as == {"--tensor-parallel-size": "-tp"}


def test_variables_are_taken_or_told_and_never_refused() -> None:
    env = {
        "LLAMA_ARG_CTX_SIZE": "256",
        "LLAMA_ARG_CACHE_TYPE_K": "q4_0",
        "LLAMA_ARG_EMBEDDINGS": "1",
        "LLAMA_ARG_LORA": "x",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_API_KEY": "",
    }
    found = read_variables(env, SERVE)
    assert found.values == {"--max-model-len": "256", "--runner": "pooling", "--log-level": "debug"}
    assert found.variables["--max-model-len"] == "LLAMA_ARG_CTX_SIZE"
    assert len(found.told) == 2
    assert any("LLAMA_ARG_CACHE_TYPE_K" in line for line in found.told)
    assert any("LLAMA_ARG_LORA" in line for line in found.told)
    assert not any("KVCACHE_SPACE" in line for line in found.told)


def test_every_variable_names_a_flag() -> None:
    for flag in FLAGS.values():
        assert flag in known_flags() or flag in SERVE, flag


@pytest.mark.parametrize(
    ("given", "settings", "told"),
    [
        ({"tensor_parallel_size": 2, "tp_size": 2}, {"tensor_parallel_size": 2}, 0),
        ({"kv_cache_memory_bytes": 1 << 20}, {"kv_cache_memory": 1 << 20}, 0),
        ({"dtype": "half", "trust_remote_code": True}, {"dtype": "float16"}, 1),
        ({"distributed_executor_backend": "mp", "swap_space": 4}, {"executor": "processes"}, 1),
        ({"disable_radix_cache": True}, {"enable_prefix_caching": False}, 0),
        ({"speculative_config": {"method": "ngram"}}, {"speculative_config": {"method": "ngram"}}, 0),
        ({"enable_lora_bias": True}, {}, 1),
        ({"max_modle_len": 5}, {"max_modle_len": 5}, 0),
        ({"served_model_name": ["a", "b"]}, {}, 1),
    ],
)
def test_keywords_of_python(given: dict[str, Any], settings: dict[str, Any], told: int) -> None:
    found = translate_keywords(given, own_flags(EngineConfig))
    assert (found.settings, len(found.told)) == (settings, told)


@pytest.mark.parametrize("given", [{"enable_lora": True}, {"tp_size": 2, "tensor_parallel_size": 4}])
def test_keywords_that_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        translate_keywords(given, own_flags(EngineConfig))


def test_a_config_from_keywords_of_other_programs() -> None:
    config = EngineConfig.of(None, {"model_path": "M", "context_length": 256, "load_format": "pt"})
    assert (config.model.model, config.model.max_model_len) == ("M", 256)
    assert [line.split()[0] for line in config.told] == ["--load-format"]


def test_rows_say_what_a_switch_turned_off_means() -> None:
    off = {
        Taken("--enforce-eager"): Taken("--enforce-eager", "off"),
        Taken("--enable-prefix-caching", "off"): Taken("--enable-prefix-caching"),
        NotOffered("x"): AlwaysSo("it is not offered here"),
        NoEffect("x"): NoEffect("x"),
        AlwaysSo("x"): NoEffect("x"),
    }
    for meaning, wanted in off.items():
        assert Equivalent("--a", meaning).switched_off == wanted
