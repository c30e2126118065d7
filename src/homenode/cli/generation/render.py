"""`homenode render`: what a model sees of a conversation."""

from __future__ import annotations

import json

import click

from homenode.cli.generation.conversation_files import (
    load_text_side,
    read_messages,
    read_template_values,
    read_tools,
)
from homenode.cli.output.report import plain_errors, show_controls
from homenode.units import format_count


@click.command()
@click.argument("model", required=False)
@click.option(
    "--messages",
    required=True,
    metavar="FILE",
    help="File with the conversation: a JSON list of messages, as a request has them.",
)
@click.option("--tools", metavar="FILE", help="File with the tools: a JSON list, as a request has them.")
@click.option("--template", metavar="FILE", help="File with a chat template that stands in for the model's.")
@click.option(
    "--chat-template-kwargs", metavar="JSON", help='Values for the template, such as {"enable_thinking": false}.'
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: prompt, token_ids, left_out.")
def render(
    model: str | None,
    messages: str,
    tools: str | None,
    template: str | None,
    chat_template_kwargs: str | None,
    as_json: bool,
) -> None:
    """Print what MODEL sees of a conversation: the text that its chat template makes, and the tokens.

    Only the tokenizer is read, so this works for models that do not fit here.
    """
    from homenode.model.tokenizer.chat_prompt import chat_prompt

    with plain_errors():
        values = read_template_values(chat_template_kwargs)
        conversation, offered = read_messages(messages), read_tools(tools)
        tokenizer = load_text_side(model, template)
        made = chat_prompt(tokenizer, conversation, offered, values)
        text, left_out = made.text, [sent.name for sent in made.left_out]
        ids = tokenizer.encode_chat(text)
        if as_json:
            click.echo(json.dumps({"prompt": text, "token_ids": ids, "left_out": left_out}, ensure_ascii=False))
        else:
            for name in left_out:
                click.echo(f"the chat template does not show `{name}`", err=True)
            click.echo(show_controls(text))
            click.echo(f"{format_count(len(ids), 'token')}: {' '.join(map(str, ids))}")
