"""Chat templates that model files only name, as some GGUF files do: the text of one, or that nobody knows the name."""

from __future__ import annotations

import logging
from collections.abc import Mapping

_LOG = logging.getLogger("homenode.model")
_LONGEST_SHOWN = 100  # characters of a name in the log
_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_TEMPLATES = {"chatml": _CHATML}


def with_named_templates(templates: Mapping[str, str]) -> dict[str, str]:
    """Templates by what they are for, each that is a name replaced by the text of that name. A text without a mark of
    jinja2 is a name: as a template it would show no message. Those of unknown names are left out, which is logged.
    """
    found: dict[str, str] = {}
    for purpose, text in templates.items():
        if "{{" in text or "{%" in text:
            found[purpose] = text
        elif (named := _TEMPLATES.get(text.strip().lower())) is not None:
            found[purpose] = named
        elif text.strip():
            name = text.strip()[:_LONGEST_SHOWN]
            known = ", ".join(sorted(_TEMPLATES))
            _LOG.warning(
                "the model's chat template is %r, which is no template and the name of none that homenode has (%s); "
                "give one with --chat-template",
                name,
                known,
            )
    return found
