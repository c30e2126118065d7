"""Write docs/settings.md from the declared settings: `python -m tools.settings_table` (a test holds the page up to
date).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homenode.cli.flags.settings import ConfigSetting, settings_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
_INTRODUCTION = """# Settings

Every setting of `homenode serve`, and in the last part of `homenode proxy`, which has those of the log as well. A value
comes from the flag, else from the variable, else from the file given by `--config` (TOML, keys are the flags' names),
else from the default. `--show-config` prints each value and where it came from, and (`serve`) the
[tokens that end an answer](models.md#tokens-that-end-an-answer); `--check-config` validates them and exits.
Counts of tokens may be written `8k` (8192) or `1m` (1048576), sizes `512KiB` or `2GiB`, times `250ms` or `5min`.
`serve --help` shows the few that one needs first, `serve --help-all` all of them. Flags and variables of vLLM,
llama.cpp and SGLang are taken by their names there, too: [the table](other-programs.md).
What contradicts another setting is refused; what was given and has no effect as the others are is told, by
`--check-config` and at the start.

```toml
# homenode serve --config FILE
model = "/models/Qwen3-0.6B"  # the one key that is no flag: MODEL
api-key = "k1,k2"             # the text that the flag takes, or a list
kv-cache-memory = "2GiB"
```
"""


def page() -> str:
    """The whole page as Markdown."""
    from homenode.cli.flags.logs import ServiceLogConfig
    from homenode.engine.config import EngineConfig
    from homenode.model.tokenizer.config import TextConfig
    from homenode.server.http.config import ServerConfig
    from homenode.server.models.several_config import SeveralModelsConfig
    from homenode.server.proxy.config import ProxyConfig

    parts = [_INTRODUCTION]
    sections = (
        ("Server", ServerConfig),
        ("Several models", SeveralModelsConfig),
        ("Engine", EngineConfig),
        ("Text", TextConfig),
        ("Log", ServiceLogConfig),
        ("`homenode proxy`", ProxyConfig),
    )
    for title, config in sections:
        parts += [f"\n## {title}\n", "| flag | variable | default | meaning |", "|---|---|---|---|"]
        parts += [_row(setting) for setting in settings_of(config)]
    return "\n".join(parts) + "\n"


def _row(setting: ConfigSetting) -> str:
    flag = f"`--{setting.flag}`" if setting.kind is not bool else f"`--{setting.flag}` / `--no-{setting.flag}`"
    return f"| {flag} | `{setting.variable}` | {_default(setting.default)} | {setting.option.help}{_range(setting)} |"


def _default(value: Any) -> str:
    if value in (None, (), ""):
        return ""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else f"`{value}`"


def _range(setting: ConfigSetting) -> str:
    option = setting.option
    if option.choices:
        return f" One of {', '.join(option.choices)}."
    return f" At least {option.minimum:g}." if option.minimum not in (None, 0) else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
