"""Variables by which other programs are told their settings: those that mean a setting of ours are taken for it, the
others are told. Pure over a mapping of variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from homenode.equivalents.equivalent import FollowingWords
from homenode.equivalents.table import known_flags
from homenode.equivalents.translation import OwnFlag, flag_values, translate

# By variable: the flag of the same program. Variables of placement and of the size of KV memory are read elsewhere
# (host/plan/variables.py).
FLAGS = {
    "VLLM_API_KEY": "--api-key",
    "VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT": "--chat-template-timeout",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "--keep-alive-timeout",
    "VLLM_LOGGING_LEVEL": "--log-level",
    "VLLM_PP_LAYER_PARTITION": "--layer-split",
    "LLAMA_ARG_ALIAS": "--alias",
    "LLAMA_API_KEY": "--api-key",
    "LLAMA_ARG_BATCH": "--batch-size",
    "LLAMA_ARG_CACHE_PROMPT": "--cache-prompt",
    "LLAMA_ARG_CACHE_TYPE_K": "--cache-type-k",
    "LLAMA_ARG_CACHE_TYPE_V": "--cache-type-v",
    "LLAMA_ARG_CHAT_TEMPLATE_FILE": "--chat-template-file",
    "LLAMA_ARG_CORS_ORIGINS": "--cors-origins",
    "LLAMA_ARG_CTX_SIZE": "--ctx-size",
    "LLAMA_ARG_DEVICE": "--device",
    "LLAMA_ARG_EMBEDDINGS": "--embeddings",
    "LLAMA_ARG_HOST": "--host",
    "LLAMA_ARG_LOG_VERBOSITY": "--log-verbosity",
    "LLAMA_ARG_N_PARALLEL": "--parallel",
    "LLAMA_ARG_NUMA": "--numa",
    "LLAMA_ARG_POOLING": "--pooling",
    "LLAMA_ARG_PORT": "--port",
    "LLAMA_ARG_RERANKING": "--reranking",
    "LLAMA_ARG_SSE_PING_INTERVAL": "--sse-ping-interval",
    "LLAMA_ARG_SSL_CERT_FILE": "--ssl-cert-file",
    "LLAMA_ARG_SSL_KEY_FILE": "--ssl-key-file",
    "LLAMA_ARG_THINK": "--reasoning-format",
    "LLAMA_ARG_THREADS": "--threads",
}
# Read by placement, or by who reads sizes.
_READ_ELSEWHERE = frozenset({"VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU"})
_PREFIXES = ("VLLM_", "LLAMA_ARG_")
_TRUE = ("1", "true", "on", "yes", "enabled", "auto")


@dataclass
class VariableSettings:
    """Settings that variables of other programs say. `values`: by our flag, the value as text; `variables`: which said
    it. `told`: lines about what has no effect.
    """

    values: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)


def read_variables(env: Mapping[str, str], own: Mapping[str, OwnFlag]) -> VariableSettings:
    """Return what variables of other programs say of a command with these flags. What a flag would be refused for is
    told alone: a variable may be meant for another program on the same machine.
    """
    found = VariableSettings()
    for name in sorted(name for name in env if name in FLAGS and env[name]):
        made = translate(_words(FLAGS[name], env[name]), own, takes_model=False)
        found.told += [f"the variable {name}: {line}" for line in (*made.told, *made.refused)]
        for flag, value in flag_values(made.words, own):
            found.values[flag], found.variables[flag] = value, name
    rest = sorted(
        name for name in env if name.startswith(_PREFIXES) and name not in FLAGS and name not in _READ_ELSEWHERE
    )
    if rest:
        found.told.append(f"variables of other programs that say nothing here: {', '.join(rest)}")
    return found


def _words(flag: str, value: str) -> list[str]:
    known = known_flags().get(flag)
    if known is not None and known.values is FollowingWords.NONE:
        return [flag] if value.lower() in _TRUE else []
    return [flag, value.lower() if flag == "--log-level" else value]
