"""Settings of an engine, declared once: the command line, the variables and the child process are all served
from here.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from homenode.engine.disk_config import DiskConfig
from homenode.engine.kv_events_config import KvEventsConfig
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.engine.speculation.config import SpeculationConfig
from homenode.errors import UserError
from homenode.host.plan.numa.settings import NumaSettings
from homenode.net.settings import NetConfig
from homenode.options import Option, option, options_of
from homenode.spelling import with_suggestion
from homenode.transfer.setup.settings import TransferConfig, read_settings_file
from homenode.units import parse_seconds, parse_tokens

if TYPE_CHECKING:
    from homenode.equivalents.translation import OwnFlag


@dataclass(frozen=True)
class ModelConfig:
    """The model, and how it is kept. `model` is what the user named; `path` is where it lies once it was found (see
    `locate`). `vocabulary`: where the one lies that stands in for the model's; None: it is the model's.
    """

    model: str | None = None
    path: str | None = None
    vocabulary: str | None = None
    revision: str | None = option(None, "Branch, tag or commit of a Hub model.")
    quantize: str | None = option(None, "Quantise float matrices while loading.", choices=("q8_0", "q4_0"))
    dtype: str = option(
        "auto",
        "Storage of float matrices; auto keeps the model's own.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    packed_cache: str = option(
        "off",
        "Keep the packed weights in a file, so that the next start reads them as they are: off, beside (the model), "
        "or a folder.",
        metavar="off|beside|DIR",
    )
    links: bool = option(
        True,
        "Read model files that are links. Text files may only link inside of the model's folder or of the Hub cache.",
    )
    mmproj: str | None = option(
        None,
        "GGUF file with the tower and projector of a GGUF model that sees, or off. Default: a *mmproj*.gguf beside it.",
        metavar="FILE",
    )
    max_model_len: int | None = option(
        None,
        "Most tokens of a sequence, prompt and answer together, such as 8k (8192). Default: the model's own.",
        parse=parse_tokens,
        minimum=1,
    )
    runner: str = option(
        "auto",
        "Generate text, or make vectors or scores of texts (pooling), which all models can. auto: as the model's "
        "files or --pooling say.",
        choices=("auto", "generate", "pooling"),
    )
    pooling: str = option(
        "auto",
        "Which rows make the vector of a text: their mean, that of the first token (cls) or of the last. auto: as the "
        "model's files say, else last.",
        choices=("auto", "mean", "cls", "last"),
    )
    enable_prompt_embeds: bool = option(
        False,
        "Take prompts as rows of embeddings, too (prompt_embeds of /v1/completions). For clients that are trusted: a "
        "row may be anything.",
    )
    seed: int | None = option(
        None, "Makes the sampling of requests without a seed repeatable from start to start.", minimum=0
    )


@dataclass(frozen=True)
class ComputeConfig:
    """The backend that computes, and its threads."""

    threads: int | None = option(
        None,
        "Compute threads. Default: one for each physical core allowed, less one for everything else where there are "
        "more than two.",
        minimum=1,
    )
    isa: str | None = option(
        None,
        "Instruction set level to use: scalar, avx2, avx2vnni, avx512, avx512bf16 or amx; on Arm scalar, neon, dotprod "
        "or i8mm. Default: the best this machine has; `homenode doctor` lists them.",
    )
    spin_us: int = option(
        100, "Microseconds a compute thread watches for work before it sleeps.", minimum=0, maximum=100_000
    )
    backend: str = option(
        "native",
        "What computes on the CPU; for comparisons reference (NumPy, slow) and torch. Accelerators are named by "
        "--stage-devices.",
        choices=("native", "reference", "torch"),
    )
    attention_backend: str = option(
        "auto",
        "How devices of torch attend: tiled, sdpa, flash or flashinfer (the packages flash-attn and "
        "flashinfer-python). auto: tiled on the CPU, else sdpa.",
        choices=("auto", "tiled", "sdpa", "flash", "flashinfer"),
    )
    enforce_eager: bool = option(False, "Do not capture steps that only decode as graphs of an accelerator.")
    gpu_memory_utilization: float = option(
        0.9,
        "Share of an accelerator's memory that its worker may take; KV memory gets what weights and buffers leave of "
        "it.",
        minimum=0.05,
        maximum=1.0,
    )


@dataclass(frozen=True)
class PlacementConfig(NumaSettings):
    """The place where the engine runs. The same flags mean the same to `homenode plan`; without any the whole
    allowance is used.
    """

    numa_bind: bool = option(
        False, "Bind the engine's threads and memory to one NUMA node (its device's, or the first usable one)."
    )
    numa_bind_nodes: tuple[int, ...] = option(
        (), "The node to bind to, one for each worker; needs --numa-bind.", minimum=0, metavar="N..."
    )
    numa_bind_cpus: tuple[str, ...] = option(
        (), "The CPUs to bind to, one list (numactl's grammar) for each worker; needs --numa-bind.", metavar="LIST..."
    )
    cpu_threads_bind: str | None = option(
        None,
        "CPUs of the compute threads: auto (one memory node), nobind, or lists joined by |.",
        metavar="auto|nobind|LIST",
    )
    memory_nodes: str | None = option(None, "Memory nodes that --cpu-threads-bind auto may take.", metavar="LIST")
    reserve_cpus: int | None = option(
        None, "Physical cores kept free of compute threads, for HTTP, tokens and scheduling.", minimum=0, maximum=4096
    )

    @property
    def given(self) -> bool:
        """Return whether anything was asked for."""
        return self != PlacementConfig()


@dataclass(frozen=True)
class ParallelConfig:
    """The number of engines that answer behind one port, and how many workers each has."""

    data_parallel_size: int = option(
        1,
        "Engines behind this port, each with the whole model (see --enable-expert-parallel), KV memory and CPUs of its "
        "own. Settings of memory and threads are of each.",
        minimum=1,
        maximum=1024,
    )
    tensor_parallel_size: int = option(
        1,
        "Workers that share each weight of a stage: heads, inner columns and vocabulary are divided among them.",
        minimum=1,
        maximum=1024,
    )
    pipeline_parallel_size: int = option(
        1,
        "Stages of an engine: each has some of the layers, and workers of its own. Steps are in several stages at "
        "once.",
        minimum=1,
        maximum=1024,
    )
    stage_devices: str = option(
        "auto",
        "What computes each stage (or each worker, stage after stage): cpu, cuda:N, npu:N, or torch:DEVICE, joined by "
        "commas. auto: the accelerators there are, then CPU workers.",
        metavar="auto|DEVICE,...",
    )
    layer_split: str = option(
        "auto",
        "Layers of each stage, joined by commas. auto: by the time and memory that a layer takes on each device.",
        metavar="auto|N,...",
    )
    enable_expert_parallel: bool = option(
        False,
        "Give each worker whole experts of a mixture instead of a part of each, and have several engines on a host "
        "keep them once.",
    )
    expert_placement: str = option(
        "spread",
        "Which experts are where: spread (one after another, in turn), packed (runs), or a file as --expert-counts "
        "makes it; the most used then go to accelerators first.",
        metavar="spread|packed|FILE",
    )
    expert_counts: str | None = option(
        None,
        "Add to this file how often each expert of each layer was chosen, every minute and when nothing is computed; "
        "/metrics then shows layers apart.",
        metavar="FILE",
    )
    executor: str = option(
        "auto",
        "Where workers run: inline (in the engine's process; one CPU worker), processes (of this host), ray (of a Ray "
        "cluster). auto: inline where one CPU worker does it all, else processes.",
        choices=("auto", "inline", "processes", "ray"),
    )
    ray_address: str | None = option(
        None,
        "The Ray cluster, HOST:PORT or auto. Default: RAY_ADDRESS, else a cluster of this host alone.",
        metavar="HOST:PORT",
    )
    ray_placement: str = option(
        "PACK",
        "How Ray spreads workers over its hosts: together (PACK, STRICT_PACK) or apart (SPREAD, STRICT_SPREAD).",
        choices=("PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"),
    )
    worker_timeout: float = option(
        60.0,
        "Seconds a worker may be silent, or keep others waiting in a step, before it is replaced.",
        parse=parse_seconds,
        minimum=1,
    )

    @property
    def workers(self) -> int:
        """Workers of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True)
class EngineConfig:
    """All of it, as the user gave it. What is decided about an engine is in its `assignment.EngineAssignment`."""

    model: ModelConfig = field(default_factory=ModelConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    kv: KvConfig = field(default_factory=KvConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    transfer: TransferConfig = field(default_factory=TransferConfig)
    disk: DiskConfig = field(default_factory=DiskConfig)
    kv_events: KvEventsConfig = field(default_factory=KvEventsConfig)
    net: NetConfig = field(default_factory=NetConfig)
    disable_log_stats: bool = option(False, "Do not log a line of statistics every ten seconds while busy.")
    told: tuple[str, ...] = ()
    """Lines about settings of other programs that were given and have no effect here."""

    @property
    def model_name(self) -> str:
        """The model as it is called in public: what the user named, or its path."""
        return self.model.model or self.model.path or ""

    @property
    def may_be_several(self) -> bool:
        """Return whether these settings can mean more than one engine: by number, or one for each NUMA node."""
        return self.parallel.data_parallel_size > 1 or self.placement.numa in ("auto", "replicate")

    @classmethod
    def of(cls, model: str | None, settings: Mapping[str, Any]) -> EngineConfig:
        """A config from settings by name, as Python code gives them: `max_model_len=2048, kv_cache_memory="2GiB"`. None
        means the default.

        UserError for a name there is no setting of, and for a value out of range.
        """
        from homenode.equivalents.keywords import translate_keywords  # an engine's process never needs it

        translated = translate_keywords(
            {name: value for name, value in settings.items() if value is not None}, own_flags(cls)
        )
        left, told = translated.settings, list(translated.told)
        if translated.model is not None and model not in (None, translated.model):
            raise UserError(f"the model is named twice: {model} and {translated.model}; give one", param="model")
        if "kv_transfer_config" in left:
            file = read_settings_file(left["kv_transfer_config"])
            left, told = {**file.settings, **left}, [*told, *file.told]
            left["kv_transfer_config"] = file.source
        parts: dict[str, Any] = {"told": tuple(told)}
        known: list[str] = []
        for part in fields(cls):
            if isinstance(part.default_factory, type):
                kind = part.default_factory
                known += options_of(kind)
                parts[part.name] = kind(
                    **{
                        name: _checked(name, left.pop(name), o)
                        for name, (_, o) in options_of(kind).items()
                        if name in left
                    }
                )
            elif part.name in left and "option" in part.metadata:
                parts[part.name] = left.pop(part.name)
        if left:
            message = (
                f"there is no setting {', '.join(sorted(left))}; see `homenode serve --help-all` for those there are"
            )
            raise UserError(with_suggestion(message, min(left), known), param=min(left))
        parts["model"] = replace(parts["model"], model=model if translated.model is None else translated.model)
        config = cls(**parts)
        try:
            msgspec.convert(msgspec.to_builtins(config), cls)
        except (msgspec.ValidationError, TypeError) as error:
            raise UserError(f"a setting has a value of the wrong kind: {error}") from error
        return config


def own_flags(config: type[Any]) -> dict[str, OwnFlag]:
    """The flags of all settings of a config class and of those that it is composed of."""
    from homenode.equivalents.translation import OwnFlag

    found: dict[str, OwnFlag] = {}
    hints = typing.get_type_hints(config)
    for part in fields(config):
        if "option" in part.metadata:
            is_switch = bool in (hints[part.name], *typing.get_args(hints[part.name]))
            name = part.name.replace("_", "-")
            names = (f"--{name}", f"--no-{name}") if is_switch else (f"--{name}",)
            found |= dict.fromkeys(names, OwnFlag(not is_switch))
        elif is_dataclass(hints[part.name]):
            found |= own_flags(typing.cast(type[Any], hints[part.name]))
    return found


def _checked(name: str, value: Any, declared: Option) -> Any:
    if isinstance(value, dict) and declared.metavar == "JSON":
        value = json.dumps(value)
    if declared.parse is not None and isinstance(value, str):
        value = declared.parse(value)
    if declared.choices and value not in declared.choices:
        message = f"{name} is {value!r}; choose one of {', '.join(declared.choices)}"
        raise UserError(with_suggestion(message, str(value), declared.choices), param=name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = declared.minimum, declared.maximum
        if value != value or (low is not None and value < low) or (high is not None and value > high):
            bounds = " and ".join(
                f"{word} {bound:g}" for word, bound in (("at least", low), ("at most", high)) if bound is not None
            )
            raise UserError(f"{name} is {value}; it must be {bounds or 'a number'}", param=name)
    return value
