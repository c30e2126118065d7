"""Small chat templates that refuse, lose or misprint something of what clients send, each in its own way."""

from __future__ import annotations

TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
END = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
EITHER = (
    "{% if m.content is string %}{{ m.content }}{% elif m.content %}{% for p in m.content %}{{ p.text }}"
    "{% endfor %}{% endif %}"
)
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"


def turns(body: str, role: str | None = None, calls: str = CALLS) -> str:
    """A template whose messages of `role`, or all of them, are shown by `body`."""
    shown = body if role is None else f"{{% if m.role == '{role}' %}}{body}{{% else %}}{EITHER}{{% endif %}}"
    return f"{{% for m in messages %}}<|{{{{ m.role }}}}|>{shown}{calls}\n{{% endfor %}}{END}"


BODIES = {
    "the first part alone": "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}",
    "the last part alone": "{% if m.content is string %}{{ m.content }}"
    "{% else %}{{ m.content[-1]['text'] }}{% endif %}",
    "what it gets": "{{ m.content }}",
    "what it gets as JSON": "{{ m.content | tojson }}",
    "texts by a plus": "{{ '' + m.content }}",
    "parts only": "{% for p in m.content %}{{ p.text }}{% endfor %}",
    "one part only": "{{ m.content[0]['text'] }}",
}
ROLES = ("system", "developer", "user", "assistant", "tool")
_ASKED = (
    "{% set n = namespace(seen=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set n.seen = true %}"
    "{% endif %}{% endfor %}{% if not n.seen %}{{ raise_exception('There is no message of the user.') }}{% endif %}"
)
_FIRST = (
    "{% set s = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages if m.role != 'system' %}<|{{ m.role }}|>{% if loop.first %}{{ s }}{% endif %}"
)
KINDS: dict[str, str] = {
    **{f"{role}: {name}": TOOLS + turns(body, role) for role in ROLES for name, body in BODIES.items()},
    **{f"all: {name}": TOOLS + turns(body) for name, body in BODIES.items()},
    "wants a user": _ASKED + TOOLS + turns(EITHER),
    "takes the first message for the user's": (
        TOOLS + "{% set first = messages[0] %}<|user|>{% if first.content is string %}{{ first.content }}{% endif %}"
        "{% for m in messages[1:] %}<|{{ m.role }}|>" + EITHER + CALLS + "{% endfor %}" + END
    ),
    "shows the system with the last question": (
        TOOLS + "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set rest = messages[1:] %}"
        "{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}<|{{ m.role }}|>"
        "{% if m.role == 'user' and loop.last %}{{ s }}{% endif %}" + EITHER + CALLS + "{% endfor %}" + END
    ),
    "shows the system with the first message": TOOLS + _FIRST + EITHER + CALLS + "{% endfor %}" + END,
    "tools with the system alone": turns("{% if m.role == 'system' %}" + TOOLS + "{% endif %}" + EITHER),
    "for tools only": "{% for t in tools %}{{ t | tojson }}{% endfor %}" + turns(EITHER),
    "text or calls": TOOLS + turns("{% if not m.tool_calls %}" + EITHER + "{% endif %}"),
    "looks into content before it asks for none": TOOLS + turns(
        "{% if m.role == 'assistant' and '</t>' in m.content %}{{ m.content.split('</t>')[-1] }}"
        "{% elif m.content is none %}{% else %}" + EITHER + "{% endif %}"
    ),
    "no calls": TOOLS + turns(EITHER, calls=""),
    "one call": TOOLS + turns(EITHER, calls="{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}"),
    "one call, or an error": TOOLS + turns(
        EITHER,
        calls="{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call!') }}{% endif %}"
        "{{ m.tool_calls[0].function | tojson }}{% endif %}",
    ),
    "no results": TOOLS + turns("{% if m.role != 'tool' %}" + EITHER + "{% endif %}"),
    "no developers": TOOLS + turns("{% if m.role == 'developer' %}{{ raise_exception('who?') }}{% endif %}" + EITHER),
    "no systems": TOOLS + turns(
        "{% if m.role in ['system', 'developer'] %}{{ raise_exception('who?') }}{% endif %}" + EITHER
    ),
    "systems in front": TOOLS + turns(
        "{% if m.role == 'system' and not loop.first %}{{ raise_exception('too late') }}{% endif %}" + EITHER
    ),
    "in turns": TOOLS + turns(
        "{% if not loop.first and m.role == loop.previtem.role != 'tool' %}"
        "{{ raise_exception('not in turns') }}{% endif %}"
        + EITHER
    ),
    "bare functions": "{% for t in tools or [] %}{{ t.name + t.description }}{% endfor %}" + turns(EITHER),
    "no tools": turns(EITHER),
    "functions and a date instead of tools": "{{ 'They are ' + functions + datetime }}" + turns(EITHER),
    "arguments as pairs": TOOLS + turns(
        EITHER, calls="{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}"
    ),
    "arguments by a plus": TOOLS + turns(
        EITHER, calls="{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}"
    ),
}  # fmt: skip
