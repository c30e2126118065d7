"""`homenode generate`: one prompt, one continuation."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from homenode.cli.flags.equivalents import EquivalentsCommand
from homenode.cli.flags.logs import with_command_log
from homenode.cli.flags.settings import NUMA_SETTINGS, with_some_settings
from homenode.cli.generation.sampling_flags import with_sampling_flags
from homenode.cli.output.engine_notes import tell_refused_calls, tell_unused_sampling, tell_unused_settings
from homenode.cli.output.loading_progress import loading_progress
from homenode.cli.output.report import OUT, plain_errors, print_note, print_piece
from homenode.engine.config import EngineConfig
from homenode.logs.setup import hold_log

if TYPE_CHECKING:
    from homenode.model.tokenizer import Tokenizer
    from homenode.model.tokenizer.trial_run import TokenizerTrial

_SETTINGS = (
    "threads",
    "isa",
    "quantize",
    "dtype",
    "packed_cache",
    "links",
    "max_model_len",
    "kv_cache_dtype",
    *NUMA_SETTINGS,
)


@click.command(cls=EquivalentsCommand)
@click.argument("model", required=False)
@click.option("--prompt", required=True, help="Text to continue.")
@with_sampling_flags(
    "continuation",
    "0 takes the likeliest token every time, as this command does where nothing is said.",
    temperature=0.0,
)
@click.option("--ignore-eos", is_flag=True, help="Go on after the model's end token.")
@click.option("--chat", is_flag=True, help="Take the prompt as a user's message and apply the model's chat template.")
@with_some_settings(EngineConfig, *_SETTINGS)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: text, token_ids, prompt_token_ids, finish_reason, timings.",
)
@with_command_log
def generate(model: str | None, prompt: str, stop: tuple[str, ...], chat: bool, as_json: bool, **options: Any) -> None:
    """Continue one PROMPT with MODEL and print the result.

    Without --max-model-len there is room for the prompt and its continuation only, so that a model of long context
    needs little memory.
    """
    from homenode.cli.models.announcement import announce_fetch
    from homenode.engine.model_path.locate import locate_model
    from homenode.model.tokenizer.loader import begin_trial

    settings = {name: options.pop(name) for name in _SETTINGS}
    with plain_errors():
        config = EngineConfig.of(model, {"max_num_seqs": 1, **settings})
        tell_unused_settings(config)
        tell_refused_calls()
        short = _with_room_for(config, len(prompt.encode()) + options["max_tokens"])
        found = locate_model(short, announce_fetch(short)).model
        config = replace(config, model=replace(config.model, model=found.model, path=found.path))
        trial = begin_trial(Path(str(config.model.path)))
        from homenode.engine.api.llm import LLM  # takes a while, in which the trial goes on
        from homenode.sampling import SamplingParams

        params = SamplingParams(**options)
        tell_unused_sampling(params.temperature)
        config, tokenizer = _sized(config, trial, prompt, chat, params.max_tokens)
        with loading_progress(print_note) as update:
            llm = LLM(config=config, tokenizer=tokenizer, progress=update)
        with llm:
            if as_json:
                text = _print_json(llm, prompt, chat, params, stop)
                _warn_of_no_text(text, stop, chat, tokenizer)
                return
            stream = (
                llm.stream_chat([_user(prompt)], params, stop=stop) if chat else llm.stream(prompt, params, stop=stop)
            )
            shown = ""
            with hold_log():
                for piece in stream:
                    shown += piece
                    print_piece(piece)
                OUT.print()
            _warn_of_no_text(shown, stop, chat, tokenizer)


def _sized(
    config: EngineConfig, trial: TokenizerTrial | None, prompt: str, chat: bool, max_tokens: int
) -> tuple[EngineConfig, Tokenizer]:
    """The config with room for this prompt and its continuation only: a model's whole context can take more memory than
    there is."""
    from homenode.engine.plan.model_notes import remarks_on_settings
    from homenode.model.checkpoint.index import open_checkpoint
    from homenode.model.tokenizer import load_model_tokenizer

    path = Path(str(config.model.path))
    tokenizer = load_model_tokenizer(path, trial=trial)
    for remark in remarks_on_settings(config):
        print_note(remark)
    if config.model.max_model_len is None:
        ids = tokenizer.encode_chat(tokenizer.render_chat([_user(prompt)])) if chat else tokenizer.encode(prompt)
        needed = len(ids) + max_tokens
        config = _with_room_for(config, min(needed, open_checkpoint(path).spec.max_position))
    return config, tokenizer


def _with_room_for(config: EngineConfig, tokens: int) -> EngineConfig:
    """The config with sequences of at most so many tokens, where it does not say how many."""
    if config.model.max_model_len is not None:
        return config
    return replace(config, model=replace(config.model, max_model_len=tokens))


def _user(prompt: str) -> dict[str, str]:
    return {"role": "user", "content": prompt}


def _warn_of_no_text(shown: str, stop: tuple[str, ...], chat: bool, tokenizer: Tokenizer) -> None:
    """Warn why there may be no text, where there is none and no --stop has cut it off."""
    if shown.strip() or stop:
        return
    if tokenizer.has_chat_template and not chat:
        print_note("the model ended at once; it is made for conversations, so ask it with --chat")
    else:
        print_note("the model ended at once, and the answer is empty; --ignore-eos goes on behind the end")


def _print_json(llm: Any, prompt: str, chat: bool, params: Any, stop: tuple[str, ...]) -> str:
    """The completion as one JSON object; its text."""
    found = llm.chat([_user(prompt)], params, stop=stop) if chat else llm.generate(prompt, params, stop=stop)[0]
    kept = {name: value for name, value in asdict(found).items() if value is not None}
    click.echo(msgspec.json.encode({**kept, "model": llm.ready.model}).decode())
    return str(found.text)
