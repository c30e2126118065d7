"""Settings that Ollama calls options: how tokens are drawn, when an answer ends, and how a model would be
loaded there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, defstruct

from homenode.sampling import SETTINGS, SamplingParams
from homenode.server.core.generation_fields import MOST_STOPS
from homenode.server.core.media.content import Note
from homenode.server.core.setting_fields import SettingFields, given_settings, setting_field_type

_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_PENALTY = "repetition_penalty"

# Options about the loading of a model, which is loaded already.
_LOADING = (
    "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "logits_all",
    "vocab_only", "use_mmap", "use_mlock", "embedding_only", "penalize_newline",
)  # fmt: skip
# Samplers that Ollama has and this server may not have, and the values at which they change nothing.
_SAMPLERS = {"tfs_z": 1, "repeat_last_n": 64}
_NEUTRAL: dict[str, float] = {name: value for name, value in _SAMPLERS.items() if name not in SETTINGS}
# The options that have no effect, and the values that ask for none.
IDLE_OPTIONS: dict[str, tuple[float | None, ...]] = {
    **dict.fromkeys(_LOADING, (None,)),
    **{name: (None, value) for name, value in _NEUTRAL.items()},
}

if TYPE_CHECKING:

    class OllamaLeftOut(SettingFields, kw_only=True):
        """Options of Ollama that have no effect here, beside the table of sampling parameters."""

else:
    OllamaLeftOut = defstruct(
        "OllamaLeftOut",
        [(name, Any, None) for name in _LOADING] + [(name, float | None, None) for name in _NEUTRAL],
        bases=(SettingFields,),
        kw_only=True,
    )


class OllamaOptions(OllamaLeftOut, kw_only=True):
    """Options of a request. `num_predict`: the most tokens of an answer; below 1: as many as the context takes.
    `num_ctx`: the context that is wanted, which is that of the server. `num_keep`: tokens that stay of the beginning of
    a prompt that is cut, below 0: as many as there is place for.
    """

    num_ctx: int | None = None
    num_keep: Annotated[int, Meta(ge=-_INT32, le=_INT32)] | None = None
    num_predict: Annotated[int, Meta(le=_INT32)] | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: Annotated[float, Meta(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-_INT64 - 1, le=_INT64)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=MOST_STOPS)] | None = None
    repeat_penalty: setting_field_type(_PENALTY) | None = None  # type: ignore[valid-type]  # repetition_penalty here

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of an answer; None: as many as the context takes."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None


def sampling_of_options(options: OllamaOptions, logprobs: int | None) -> SamplingParams:
    """Return how tokens are drawn. `logprobs`: of how many other tokens the answer shows log-probabilities; None: of
    none.
    """
    settings = given_settings(options)
    if options.repeat_penalty is not None:
        settings.setdefault(_PENALTY, SETTINGS[_PENALTY].clamped(options.repeat_penalty))
    for name in ("mirostat", "mirostat_tau", "mirostat_eta"):
        if getattr(options, name) is not None:
            settings[name] = getattr(options, name)
    stops = [options.stop] if isinstance(options.stop, str) else options.stop or []
    return SamplingParams(seed=options.seed, stop=[stop for stop in stops if stop], logprobs=logprobs, **settings)


def note_options(options: OllamaOptions, max_model_len: int, note: Note) -> None:
    """Tell which of the options have no effect."""
    for name, idle in IDLE_OPTIONS.items():
        if getattr(options, name) not in idle:
            note(name, f"options.{name}")
    if options.num_ctx is not None and options.num_ctx > max_model_len:
        note("num_ctx", "options.num_ctx")
