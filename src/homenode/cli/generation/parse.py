"""`homenode parse`: the message that a model's text is understood as."""

from __future__ import annotations

import json
from typing import Any

import click

from homenode.cli.generation.conversation_files import (
    load_text_side,
    read_file,
    read_template_values,
    read_tools,
)
from homenode.cli.output.report import plain_errors

_QUESTION = [{"role": "user", "content": "Hi"}]


@click.command()
@click.argument("model", required=False)
@click.option("--text", required=True, metavar="FILE", help="File with what the model wrote.")
@click.option("--tools", metavar="FILE", help="File with the tools: a JSON list, as a request has them.")
@click.option("--template", metavar="FILE", help="File with a chat template that stands in for the model's.")
@click.option("--format", "tool_format", metavar="NAME", help="Format of tool calls; by default the template shows it.")
@click.option("--reasoning-parser", metavar="NAME", help="Form of thoughts; by default the template shows it.")
@click.option(
    "--chat-template-kwargs", metavar="JSON", help='Values for the template, such as {"enable_thinking": false}.'
)
def parse(
    model: str | None,
    text: str,
    tools: str | None,
    template: str | None,
    tool_format: str | None,
    reasoning_parser: str | None,
    chat_template_kwargs: str | None,
) -> None:
    """Print the message that a text of MODEL is understood as, as one JSON object: content, reasoning_content,
    tool_calls.

    The text goes on where the prompt that the chat template makes ends, so thoughts that the template opens have begun.
    """
    from homenode.chat.choice import choose
    from homenode.chat.parser import MessageParser, parse_message
    from homenode.model.tokenizer.chat_prompt import chat_prompt

    with plain_errors():
        values = read_template_values(chat_template_kwargs)
        offered, written = read_tools(tools), read_file("--text", text)
        tokenizer = load_text_side(model, template)
        chosen = choose(
            tokenizer.template_source(bool(offered)),
            response_template=tokenizer.response_template,
            tool_parser=tool_format,
            reasoning_parser=reasoning_parser,
        )
        prompt = chat_prompt(tokenizer, _QUESTION, offered, values).text
        message = parse_message(MessageParser(chosen, prompt, offered), written)
        shown: dict[str, Any] = {
            "content": message.content or None,
            "reasoning_content": message.reasoning or None,
            "tool_calls": [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.calls
            ],
        }
        click.echo(json.dumps(shown, ensure_ascii=False))
