"""Texts of models in every format, and the messages they are."""

from __future__ import annotations

import json
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import pytest

from homenode.chat.choice import choose
from homenode.chat.parser import MessageParser
from homenode.chat.syntax.parts import CallDelta

from .messages import TOOLS, parse

SEAT = {"train": "ICE 5", "seats": 2}
SEAT_JSON = json.dumps(SEAT)
HARD: dict[str, Any] = {
    "train": 'a "b" {c} [d] \\ é 🦊\n',
    "options": {"x": [1, {"y": None}], "z": -1.5},
    "window": True,
}
HARD_JSON = json.dumps(HARD)

Calls = list[tuple[str, Any]]  # name and arguments of each
SEATED: Calls = [("book_seat", SEAT)]
LISTED: Calls = [("list_trains", {})]


@dataclass(frozen=True)
class Case:
    """`content` is, unless said, all of the text where there are no calls, and nothing where there are some."""

    label: str
    format: str
    text: str
    _: KW_ONLY
    content: str | None = None
    calls: Calls = field(default_factory=list)
    ids: list[str] | None = None


_QWEN = "<tool_call>\n<function=book_seat>\n<parameter=train>\n"
_QWEN_END = "</function>\n</tool_call>"

CASES = [
    Case(
        "a call",
        "hermes",
        f'<tool_call>\n{{"name": "book_seat", "arguments": {SEAT_JSON}}}\n</tool_call>',
        calls=SEATED,
    ),
    Case(
        "content around calls",
        "hermes",
        (
            f'Now.\n<tool_call>{{"name": "book_seat", "arguments": {HARD_JSON}}}</tool_call>\nThen.\n\n'
            '<tool_call>{"arguments": {}, "name": "list_trains"}</tool_call>  Done.'
        ),
        content="Now.\nThen.\n\nDone.",
        calls=[("book_seat", HARD), ("list_trains", {})],
    ),
    Case("no arguments", "hermes", '<tool_call>{"name": "list_trains"}', calls=LISTED),
    Case("cut", "hermes", 'So: <tool_call>{"name": "book_seat", "arguments": {"tr'),
    Case("wrong escape", "hermes", '<tool_call>{"name": "book_seat", "arguments": {"train": "\\q"}}</tool_call>'),
    Case(
        "line break within a string",
        "hermes",
        '<tool_call>{"name": "book_seat", "arguments": {"train": "a\nb"}}</tool_call>',
        calls=[("book_seat", {"train": "a\nb"})],
    ),
    Case(
        "in the way of OpenAI",
        "json",
        '{"type": "function", "function": {"name": "book_seat", "arguments": "{\\"seats\\": 1}"}}',
        calls=[("book_seat", {"seats": 1})],
    ),
    Case(
        "a list",
        "json",
        f'[{{"name": "book_seat", "arguments": {SEAT_JSON}}}, {{"name": "list_trains", "arguments": null}}]',
        calls=SEATED + LISTED,
    ),
    Case(
        "behind a sentence",
        "json",
        f'Sure:\n{{"name": "book_seat", "arguments": {SEAT_JSON}}}',
        content="Sure:",
        calls=SEATED,
    ),
    Case("within a sentence", "json", 'Say {"name": "list_trains", "arguments": {}}.'),
    Case("of no tool", "json", '{"name": "Ada", "arguments": {}}\n{"a": 1}'),
    Case(
        "two calls",
        "llama3_json",
        f'{{"name": "book_seat", "parameters": {SEAT_JSON}}};{{"name": "list_trains", "parameters": {{}}}}',
        calls=SEATED + LISTED,
    ),
    Case(
        "behind its tag",
        "llama3_json",
        'Ok.<|python_tag|>{"name": "other", "parameters": {"a": []}}',
        content="Ok.",
        calls=[("other", {"a": []})],
    ),
    Case(
        "values of all types",
        "qwen3_coder",
        (
            "Ok.\n<tool_call>\n<function=book_seat>\n<parameter=train>\n12\n\n</parameter>\n<parameter=seats>\n2\n"
            "</parameter>\n<parameter=window>\nTrue\n</parameter>\n<parameter=price>\nnull\n</parameter>\n"
            '<parameter=stops>\n["é"]\n</parameter>\n<parameter=other>\nx y\n</parameter>\n</function>\n'
            "</tool_call>"
        ),
        content="Ok.",
        calls=[
            ("book_seat", {"train": "12\n", "seats": 2, "window": True, "price": None, "stops": ["é"], "other": "x y"})
        ],
    ),
    Case(
        "a value that is not of its type",
        "qwen3_coder",
        "<function=book_seat>\n<parameter=seats>\ntwo\n</parameter>\n</function>",
        calls=[("book_seat", {"seats": "two"})],
    ),
    Case(
        "its own tags in a value",
        "qwen3_coder",
        (
            "<tool_call><function=book_seat><parameter=train>\nWrite </parameter> and </function>.\n</parameter>"
            "</function></tool_call>"
        ),
        calls=[("book_seat", {"train": "Write </parameter> and </function>."})],
    ),
    Case(
        "no end of the function",
        "qwen3_coder",
        "<tool_call>\n<function=book_seat>\n<parameter=seats>\n1\n</parameter>\n</tool_call>!",
        content="!",
        calls=[("book_seat", {"seats": 1})],
    ),
    Case("cut in a name", "qwen3_coder", "a\n<tool_call>\n<function=book"),
    Case(
        "tags of Seed-OSS",
        "qwen3_coder",
        "<seed:tool_call>\n<function=book_seat>\n<parameter=seats>1</parameter>\n</function>\n</seed:tool_call>",
        calls=[("book_seat", {"seats": 1})],
    ),
    Case(
        "tokens of Llama 4",
        "llama3_json",
        '<|python_start|>{"name": "list_trains", "parameters": {}}<|python_end|>Done.',
        content="Done.",
        calls=LISTED,
    ),
    Case(
        "a list with ids behind",
        "mistral",
        f'Ok[TOOL_CALLS] [{{"name": "book_seat", "arguments": {SEAT_JSON}, "id": "q1w2e3r4t"}}]',
        content="Ok",
        calls=SEATED,
        ids=["q1w2e3r4t"],
    ),
    Case(
        "names and arguments",
        "mistral",
        f"[TOOL_CALLS]book_seat[CALL_ID]x9[ARGS]{HARD_JSON}[TOOL_CALLS]list_trains[ARGS]{{}}",
        calls=[("book_seat", HARD), ("list_trains", {})],
        ids=["x9", "a"],
    ),
    Case(
        "broken second",
        "mistral",
        '[TOOL_CALLS][{"name": "list_trains", "arguments": {}}, {"name": 5}]',
        content='{"name": 5}]',
        calls=LISTED,
    ),
    Case("an empty list", "mistral", "[TOOL_CALLS][]"),
    Case(
        "V3",
        "deepseek_v3",
        (
            f"So.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>book_seat\n```json\n{SEAT_JSON}\n"
            f"```<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>list_trains\n```json\n{{}}\n"
            f"```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        content="So.",
        calls=SEATED + LISTED,
    ),
    Case(
        "V3.1",
        "deepseek_v31",
        (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>book_seat<｜tool▁sep｜>{HARD_JSON}<｜tool▁call▁end｜>"
            f"<｜tool▁call▁begin｜>list_trains<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>\nDone."
        ),
        content="Done.",
        calls=[("book_seat", HARD), ("list_trains", {})],
    ),
    Case("V3.1, cut", "deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>book_seat<｜tool▁sep｜>{"),
    Case(
        "V3.2",
        "deepseek_v32",
        (
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="book_seat">\n<｜DSML｜parameter name="train" string="true">'
            '12</｜DSML｜parameter>\n<｜DSML｜parameter name="seats" string="false">2</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
        ),
        calls=[("book_seat", {"train": "12", "seats": 2})],
    ),
    Case(
        "V4",
        "deepseek_v4",
        (
            'Hm.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="book_seat">\n'
            '<｜DSML｜parameter name="train" string="true">12</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="seats" string="false">2</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
        ),
        content="Hm.",
        calls=[("book_seat", {"train": "12", "seats": 2})],
    ),
    Case(
        "a list between tags",
        "nemotron",
        (
            f'Ok.\n<TOOLCALL>[{{"name": "book_seat", "arguments": {HARD_JSON}}}, '
            '{"name": "list_trains", "arguments": {}}]</TOOLCALL>\nDone.'
        ),
        content="Ok.\nDone.",
        calls=[("book_seat", HARD), ("list_trains", {})],
    ),
    Case("no call between tags", "nemotron", "<TOOLCALL>[]</TOOLCALL> x"),
    Case(
        "a list with ids",
        "apriel",
        f'<tool_calls>[{{"name": "book_seat", "arguments": {SEAT_JSON}, "id": "c7"}}]</tool_calls>',
        calls=SEATED,
        ids=["c7"],
    ),
    Case(
        "a call on each line",
        "minimax",
        (
            f'<tool_calls>\n{{"name": "book_seat", "arguments": {SEAT_JSON}}}\n'
            '{"name": "list_trains", "arguments": {}}\n</tool_calls>'
        ),
        calls=SEATED + LISTED,
    ),
    Case("nothing between tags", "minimax", "<tool_calls>\n</tool_calls>"),
    Case(
        "one call behind a mark",
        "gigachat3",
        f'Ok.<|function_call|>{{"name": "book_seat", "arguments": {SEAT_JSON}}}',
        content="Ok.",
        calls=SEATED,
    ),
    Case("a mark alone", "gigachat3", "<|function_call|> none"),
    Case(
        "calls on lines",
        "olmo3",
        'So:\n<function_calls>\nbook_seat(train="a, b)", seats=2, window=True)\nlist_trains()\n</function_calls>',
        content="So:",
        calls=[("book_seat", {"train": "a, b)", "seats": 2, "window": True}), ("list_trains", {})],
    ),
    Case("lines cut", "olmo3", "<function_calls>\nbook_seat(seats="),
    Case(
        "functions as tags",
        "functionary_v31",
        f"Hm.\n<function=book_seat>{SEAT_JSON}</function><function=list_trains>{{}}</function>",
        content="Hm.",
        calls=SEATED + LISTED,
    ),
    Case("no object", "functionary_v31", "<function=book_seat>5</function>"),
    Case(
        "names as keys",
        "apertus",
        f'Go<|tools_prefix|>[{{"book_seat": {HARD_JSON}}}, {{"list_trains": {{}}}}]<|tools_suffix|>',
        content="Go",
        calls=[("book_seat", HARD), ("list_trains", {})],
    ),
    Case(
        "elements within elements",
        "minimax_m3",
        (
            (
                'Ok\n@<tool_call>\n@<invoke name="book_seat">@<train>7 < 8]@</train>@<seats>7@</seats>'
                "@<options>@<a>@<item>1@</item>@<item>x@</item>@</a>@<b>@<c>true@</c>@</b>@</options>"
                "@<stops>@<item>12@</item>@<item>b@</item>@</stops>@</invoke>\n"
                '@<invoke name="list_trains">@</invoke>\n@</tool_call>'
            ).replace("@", "]<]minimax[>[")
        ),
        content="Ok",
        calls=[
            (
                "book_seat",
                {"train": "7 < 8]", "seats": 7, "options": {"a": [1, "x"], "b": {"c": True}}, "stops": ["12", "b"]},
            ),
            ("list_trains", {}),
        ],
    ),
    Case(
        "one line",
        "glm45",
        (
            "Go<tool_call>book_seat<arg_key>train</arg_key><arg_value> 7 </arg_value><arg_key>seats</arg_key>"
            "<arg_value>7</arg_value></tool_call><tool_call>list_trains</tool_call>"
        ),
        content="Go",
        calls=[("book_seat", {"train": " 7 ", "seats": 7}), ("list_trains", {})],
    ),
    Case(
        "lines",
        "glm45",
        '<tool_call>book_seat\n<arg_key>options</arg_key>\n<arg_value>{"a": [1]}</arg_value>\n</tool_call>',
        calls=[("book_seat", {"options": {"a": [1]}})],
    ),
    Case("no end", "glm45", "<tool_call>book_seat\n<arg_key>seats</arg_key>"),
    Case(
        "ids",
        "kimi_k2",
        (
            f"Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.book_seat:3<|tool_call_argument_begin|>"
            f"{SEAT_JSON}<|tool_call_end|><|tool_call_begin|>functions.list_trains:4 <|tool_call_argument_begin|> "
            f"{{}} <|tool_call_end|><|tool_calls_section_end|>"
        ),
        content="Hm.",
        calls=SEATED + LISTED,
        ids=["functions.book_seat:3", "functions.list_trains:4"],
    ),
    Case(
        "two in a block",
        "minimax_m2",
        (
            'Ok\n<minimax:tool_call>\n<invoke name="book_seat">\n<parameter name="train"><b>\n</parameter>\n'
            '<parameter name="seats">2</parameter>\n</invoke>\n<invoke name="list_trains">\n</invoke>\n'
            "</minimax:tool_call>"
        ),
        content="Ok",
        calls=[("book_seat", {"train": "<b>\n", "seats": 2}), ("list_trains", {})],
    ),
    Case(
        "cut in the second",
        "minimax_m2",
        '<minimax:tool_call><invoke name="list_trains"></invoke><invoke name="book',
        content='<invoke name="book',
        calls=LISTED,
    ),
    Case(
        "strings of its own",
        "gemma4",
        (
            '<|tool_call>call:book_seat{train:<|"|>a "b", {c}\n<|"|>,options:{x:[1,{y:null}],z:-1.5},'
            "window:true}<tool_call|>"
        ),
        calls=[("book_seat", {"train": 'a "b", {c}\n', "options": {"x": [1, {"y": None}], "z": -1.5}, "window": True})],
    ),
    Case("no braces", "gemma4", "<|tool_call>call:book_seat<tool_call|>"),
    Case(
        "escaped strings",
        "functiongemma",
        "Ok <start_function_call>call:book_seat{train:<escape>x<escape>}<end_function_call>",
        content="Ok",
        calls=[("book_seat", {"train": "x"})],
    ),
    Case(
        "a list",
        "granite",
        f'Fine.<|tool_call|>[{{"name": "book_seat", "arguments": {SEAT_JSON}}}]',
        content="Fine.",
        calls=SEATED,
    ),
    Case("functools", "phi4_mini_json", f'functools[{{"name": "book_seat", "arguments": {SEAT_JSON}}}]', calls=SEATED),
    Case("the word in a sentence", "phi4_mini_json", "Use functools[1] here."),
    Case(
        "actions",
        "cohere_command3",
        f'<|START_ACTION|>[{{"tool_call_id": "7", "tool_name": "book_seat", "parameters": {SEAT_JSON}}}]<|END_ACTION|>',
        calls=SEATED,
        ids=["7"],
    ),
    Case(
        "a block of code",
        "command_r",
        f'Action:\n```json\n[{{"tool_name": "book_seat", "parameters": {SEAT_JSON}}}]\n```',
        calls=SEATED,
    ),
    Case("a word", "command_r", "Action: run!"),
    Case(
        "literals",
        "pythonic",
        """[book_seat(train='it\\'s "x"', window=False, price=None, stops=["a", 'b',], options={'k': -1}), list_trains()]""",
        calls=[
            (
                "book_seat",
                {"train": 'it\'s "x"', "window": False, "price": None, "stops": ["a", "b"], "options": {"k": -1}},
            ),
            ("list_trains", {}),
        ],
    ),
    Case("an expression", "pythonic", "[book_seat(train=a + b)]"),
    Case("no offered tool", "pythonic", "[print(a=1)]"),
    Case(
        "between tokens",
        "lfm2",
        "<|tool_call_start|>[book_seat(seats=2)]<|tool_call_end|>Booking.",
        content="Booking.",
        calls=[("book_seat", {"seats": 2})],
    ),
    Case("an answer", "openai", "<|channel|>final<|message|>Yes < no.<|return|>", content="Yes < no."),
    Case(
        "a call",
        "openai",
        f"<|channel|>commentary to=functions.book_seat <|constrain|>json<|message|>{SEAT_JSON}<|call|>",
        calls=SEATED,
    ),
    Case(
        "a call and a preamble",
        "openai",
        (
            f"<|channel|>commentary<|message|>Let me.<|end|><|start|>assistant to=functions.book_seat<|channel|>"
            f"commentary json<|message|>{SEAT_JSON}<|call|>"
        ),
        content="Let me.",
        calls=SEATED,
    ),
    Case(
        "no arguments",
        "openai",
        "<|channel|>commentary to=functions.book_seat<|message|>all of them<|call|>",
        content="all of them",
    ),
    Case(
        "the recipient behind the role of the prompt",
        "openai",
        f" to=functions.book_seat<|channel|>commentary json<|message|>{SEAT_JSON}<|call|>",
        calls=SEATED,
    ),
    Case("an answer that begins like one", "openai", "to=day is fine"),
    Case("no header", "openai", "Plain <|channel|>words"),
    Case(
        "no channel", "openai", "<|message|>Hi<|end|><|start|>assistant<|message|> there<|return|>", content="Hi there"
    ),
    Case(
        "a recipient without the word functions",
        "openai",
        f"<|channel|>commentary to=book_seat<|message|>{SEAT_JSON}<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.list_trains<|message|><|call|>",
        calls=SEATED + LISTED,
    ),
    Case(
        "a list between the tags",
        "hermes",
        f'<tool_call>[{{"name": "book_seat", "arguments": {SEAT_JSON}}}, {{"name": "list_trains"}}]</tool_call>',
        calls=SEATED + LISTED,
    ),
    Case(
        "two calls between the tags",
        "hermes",
        f'<tool_call>\n{{"name": "book_seat", "arguments": {SEAT_JSON}}}\n{{"name": "list_trains"}}\n</tool_call>',
        calls=SEATED + LISTED,
    ),
    Case(
        "a list",
        "llama3_json",
        f'[{{"name": "book_seat", "parameters": {SEAT_JSON}}}, {{"name": "list_trains", "parameters": {{}}}}]',
        calls=SEATED + LISTED,
    ),
    Case("a list of something else", "llama3_json", '[{"name": "Ada"}, 1]'),
    Case(
        "a method",
        "llama3_json",
        '<|python_tag|>book_seat.call(train="ICE 5", seats=2)',
        calls=SEATED,
    ),
    Case("code", "llama3_json", "<|python_tag|>train.call(1)"),
    Case(
        "one call that is in no list",
        "mistral",
        f'[TOOL_CALLS] {{"name": "book_seat", "arguments": {SEAT_JSON}, "id": "abc123def"}}',
        calls=SEATED,
        ids=["abc123def"],
    ),
    Case("white space behind a name", "mistral", f"[TOOL_CALLS]book_seat {SEAT_JSON}", calls=SEATED),
    Case(
        "a block of code without the word function",
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜> book_seat <｜tool▁sep｜>\n"
        f"```json\n{SEAT_JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        calls=SEATED,
    ),
    Case(
        "no arguments at all",
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.list_trains:0<|tool_call_argument_begin|>"
        "<|tool_call_end|><|tool_calls_section_end|>",
        calls=LISTED,
    ),
    Case(
        "values as Python writes them",
        "qwen3_coder",
        "<tool_call>\n<function=book_seat>\n<parameter=train>\n{'a': 1}\n</parameter>\n<parameter=window>\nTRUE\n"
        "</parameter>\n<parameter=options>\n{'x': None, 'y': [True]}\n</parameter>\n<parameter=stops>\n['A', \"B's\"]\n"
        "</parameter>\n</function>\n</tool_call>",
        calls=[
            (
                "book_seat",
                {"train": "{'a': 1}", "window": True, "options": {"x": None, "y": [True]}, "stops": ["A", "B's"]},
            )
        ],
    ),
    Case(
        "an object alone, and tags around",
        "granite",
        f'<|tool_call|>{{"name": "book_seat", "arguments": {SEAT_JSON}}}\n<tool_call>[{{"name": '
        f'"list_trains"}}]</tool_call>',
        calls=SEATED + LISTED,
    ),
    Case(
        "an object alone",
        "cohere_command3",
        '<|START_ACTION|>{"tool_call_id": "0", "tool_name": "list_trains", "parameters": {}}<|END_ACTION|>',
        calls=LISTED,
        ids=["0"],
    ),
    Case(
        "strings of several lines",
        "pythonic",
        '[book_seat(train="""a \'b\' "c"\nd""", seats=2), book_seat(train=\'\')]',
        calls=[("book_seat", {"train": "a 'b' \"c\"\nd", "seats": 2}), ("book_seat", {"train": ""})],
    ),
    Case(
        "a text and two calls",
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="book_seat" index="1"<|sep|>'
        '<|open|>argument key="train" type="string"<|sep|>12 & "<b>"<|close|>argument<|sep|>'
        '<|open|>argument key="stops" type="array"<|sep|>["<|close|>"]<|close|>argument<|sep|><|close|>call<|sep|>'
        '<|open|>call tool="list_trains" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        calls=[("book_seat", {"train": '12 & "<b>"', "stops": ["<|close|>"]}), *LISTED],
    ),
    Case(
        "escaped attributes, and a number that is a string",
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="a" index="1"<|sep|><|open|>argument key="&quot;&amp;lt;" type="string"'
        "<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        calls=[("a", {'"&lt;': "1"})],
    ),
    Case(
        "arguments in one text",
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="book_seat" index="1"<|sep|><|open|>json type="object"<|sep|>'
        f"{SEAT_JSON}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        calls=SEATED,
    ),
    Case("cut in an attribute", "kimi_k3", 'So.<|open|>tools<|sep|><|open|>call tool="book_seat" ind'),
    Case(
        "values of all types",
        "hy3",
        "Ok.<tool_calls:opensource>\n<tool_call:opensource>book_seat<tool_sep:opensource>\n"
        "<arg_key:opensource>train</arg_key:opensource>\n<arg_value:opensource>12\n</arg_value:opensource>\n"
        "<arg_key:opensource>seats</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n"
        "</tool_call:opensource>\n<tool_call:opensource>list_trains<tool_sep:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
        content="Ok.",
        calls=[("book_seat", {"train": "12\n", "seats": 2}), *LISTED],
    ),
    Case(
        "nothing behind the name",
        "hy3",
        "<tool_calls:opensource>\n<tool_call:opensource>book_seat</tool_call:opensource>",
    ),
    Case(
        "ids of its own",
        "solar_open",
        f"<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>book_seat<|tool_call:args|>{SEAT_JSON}"
        "<|tool_call:end|><|tool_call:begin|>f6<|tool_call:name|>list_trains<|tool_call:args|><|tool_call:end|><|calls|>",
        calls=SEATED + LISTED,
        ids=["a1b2c3d4e5", "f6"],
    ),
    Case("no arguments", "solar_open", "<|tool_calls|><|tool_call:begin|>a<|tool_call:name|>book_seat<|calls|>"),
    Case(
        "sections of texts",
        "minicpm5",
        'Ok.\n<function name="book_seat"><param name="train"><![CDATA[a </param> & <b>\n]]></param>'
        '<param name="seats">2</param><param name="window">True</param></function>\n'
        '<function name="list_trains"></function>',
        content="Ok.",
        calls=[("book_seat", {"train": "a </param> & <b>\n", "seats": 2, "window": True}), *LISTED],
    ),
    Case("its tag in a sentence", "minicpm5", 'Write <function name="x"> here, or <param name="y">.'),
    Case(
        "a text and calls",
        "functionary_v32",
        f"all\nOk.\n>>> 1 + 1\n>>>book_seat\n{SEAT_JSON}>>>list_trains\n{{}}",
        content="Ok.\n>>> 1 + 1",
        calls=SEATED + LISTED,
    ),
    Case("a call at once", "functionary_v32", f"book_seat\n{SEAT_JSON}", calls=SEATED),
    Case("no recipient", "functionary_v32", "allowed\n>>>nobody\n{}"),
    *(
        Case(
            f"a wrong escape before {value}",
            name,
            text.replace("VALUE", value),
        )
        for value in ("1", "true")
        for name, text in (
            ("hermes", '<tool_call>{"name": "book_seat", "arguments": {"train": "x\\qVALUE}}</tool_call>'),
            ("pythonic", '[book_seat(train="x\\xVALUE)]'),
        )
    ),
    *(
        Case(f"a value without an end, {label}", name, text, calls=SEATED)
        for label, name, text in (
            ("another behind it", "qwen3_coder", f"{_QWEN}ICE 5\n<parameter=seats>\n2\n</parameter>\n{_QWEN_END}"),
            ("on one line", "qwen3_coder", f"{_QWEN}ICE 5<parameter=seats>2</parameter>{_QWEN_END}"),
            ("nor the last", "qwen3_coder", f"{_QWEN}ICE 5\n<parameter=seats>\n2\n{_QWEN_END}"),
            ("nor the function", "qwen3_coder", f"{_QWEN}ICE 5\n<parameter=seats>\n2\n</tool_call>"),
            ("and the text ends", "qwen3_coder", f"{_QWEN}ICE 5\n<parameter=seats>\n2\n</function>"),
            (
                "another behind it",
                "glm45",
                "<tool_call>book_seat\n<arg_key>train</arg_key>\n<arg_value>ICE 5\n<arg_key>seats</arg_key>\n"
                "<arg_value>2</tool_call>",
            ),
            (
                "another behind it",
                "minimax_m2",
                '<minimax:tool_call>\n<invoke name="book_seat">\n<parameter name="train">ICE 5\n'
                '<parameter name="seats">2\n</invoke>\n</minimax:tool_call>',
            ),
            (
                "another behind it",
                "kimi_k3",
                '<|open|>tools<|sep|><|open|>call tool="book_seat" index="1"<|sep|>'
                '<|open|>argument key="train" type="string"<|sep|>ICE 5<|open|>argument key="seats" type="number"<|sep|>'
                "2<|close|>call<|sep|><|close|>tools<|sep|>",
            ),
        )
    ),
    *(
        Case(f"a value that holds {label}", "qwen3_coder", f"{_QWEN}{text}\n</parameter>\n{_QWEN_END}", calls=calls)
        for label, text, calls in (
            (
                "a call",
                "<function=x>\n<parameter=seats>\n2",
                [("book_seat", {"train": "<function=x>\n<parameter=seats>\n2"})],
            ),
            ("a tag of no parameter", "a\n<parameter=x>\n2", [("book_seat", {"train": "a\n<parameter=x>\n2"})]),
            ("its own tag", "a\n<parameter=train>\n2", [("book_seat", {"train": "a\n<parameter=train>\n2"})]),
            ("an end alone", "a</function> b", [("book_seat", {"train": "a</function> b"})]),
        )
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format}: {case.label}")
def test_a_text_is_understood(case: Case) -> None:
    whole = parse(case.text, case.format)
    content = ("" if case.calls else case.text) if case.content is None else case.content
    assert whole.content == content
    assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == case.calls
    if case.ids is not None:
        assert [call.id for call in whole.calls] == case.ids
    assert parse(list(case.text), case.format) == whole


def _typed(kinds: Any, value: str) -> Any:
    """What an argument of these types becomes that is written as a text between tags."""
    schema = {"type": "object", "properties": {"train": {"type": kinds}}}
    tools = [{"type": "function", "function": {"name": "book_seat", "parameters": schema}}]
    [call] = parse(f"{_QWEN}{value}\n</parameter>\n{_QWEN_END}", "qwen3_coder", tools=tools).calls
    return json.loads(call.arguments)["train"]


@pytest.mark.parametrize(
    ("kinds", "value", "wanted"),
    [
        ("int", "5", 5),
        ("INTEGER", "5", 5),
        ("bool", "true", True),
        ("list", "[1]", [1]),
        ("list[str]", '["a"]', ["a"]),
        ("dict", "{'a': 1}", {"a": 1}),
        ("float", "5", 5),
        ("str", "5", "5"),
        (["int", "none"], "None", None),
        ("Optional[int]", "5", 5),
        ("string|int", "5", 5),
        ("number", ".5", 0.5),
        ("number", "-.5e3", -500),
        ("number", "5.", 5),
        ("integer", "+5", 5),
        ("integer", "007", 7),
        ("integer", "1_000", 1000),
        ("integer", "null", None),
        ("number", "1.2.3", "1.2.3"),
        ("number", ".", "."),
        ("colour", "5", "5"),
    ],
)
def test_a_text_has_the_type_of_its_parameter(kinds: Any, value: str, wanted: Any) -> None:
    found = _typed(kinds, value)
    assert (found, type(found)) == (wanted, type(wanted)) or (found == wanted and not isinstance(wanted, bool | str))


def test_where_decoding_is_bound_no_end_is_missing() -> None:
    text = f"{_QWEN}a\n<parameter=seats>\n2\n</parameter>\n{_QWEN_END}"
    [call] = parse(text, "qwen3_coder", eager=True).calls
    assert json.loads(call.arguments) == {"train": "a\n<parameter=seats>\n2"}


def test_thoughts_of_harmony_are_a_channel() -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes"
    message = parse(text, "openai", thoughts="openai")
    assert (message.reasoning, message.content) == ("Hm.", "Yes")
    raw = parse(text, "openai", thoughts="openai", raw=True)
    assert (raw.reasoning, raw.content) == ("", "<|channel|>analysis<|message|>Hm.Yes")


def test_calls_are_shown_as_they_come_where_they_are_bound_to_be_whole() -> None:
    text = f'<tool_call>{{"name": "book_seat", "arguments": {SEAT_JSON}}}</tool_call>'
    parser = MessageParser(choose("", tool_parser="hermes"), tools=TOOLS, eager=True)
    deltas = [delta for letter in text for delta in parser.feed(letter)]
    assert all(isinstance(delta, CallDelta) and delta.index == 0 for delta in deltas)
    assert len(deltas) > 10


def test_a_long_call_is_shown_before_it_is_whole_and_what_breaks_it_is_content() -> None:
    text = '<tool_call>{"name": "book_seat", "arguments": {"train": "' + "a" * 400 + '" oops'
    message = parse(text, "hermes")
    assert message.content == "oops"
    assert message.calls[0].arguments == '{"train": "' + "a" * 400 + '"'


def test_without_tools_nothing_is_a_call() -> None:
    text = f'<tool_call>\n{{"name": "book_seat", "arguments": {SEAT_JSON}}}\n</tool_call>'
    assert parse(text, "hermes", tools=[]).content == text
