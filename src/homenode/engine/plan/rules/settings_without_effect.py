"""Settings of an engine that were given and have no effect as the others are: each is told, none is silently dropped.

What contradicts another setting is refused elsewhere (`placement`, `numa_policy`, `transfer.setup.checks`); this is
about what nobody looks at. Two tables say when each such setting is looked at: `setting_rules`, `transfer_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homenode.engine.config import EngineConfig
from homenode.engine.plan.rules.setting_rules import RULES, Situation
from homenode.engine.plan.rules.transfer_rules import TRANSFER_SETTINGS_OF_OTHERS, rules_of_transfer
from homenode.host.topology.finding import Finding
from homenode.options import options_of

# All settings that have an effect only beside others, by name.
SETTINGS_OF_OTHERS = frozenset(rule.setting for rule in RULES) | TRANSFER_SETTINGS_OF_OTHERS
_CODE = "setting_ignored"


def worth_telling(finding: Finding) -> bool:
    """Return whether a finding about an engine is told at its start and by --check-config."""
    return finding.severity != "info" or finding.code == _CODE


def settings_without_effect(
    config: EngineConfig,
    devices: Sequence[str],
    variables: Mapping[str, str],
    engines: int | None = None,
    keeps_states: bool | None = None,
    has_experts: bool | None = None,
) -> tuple[Finding, ...]:
    """A finding for each setting that differs from its default and that nothing looks at, for one reason. `devices`: of
    the engine's workers. `engines`: of the service; `keeps_states`, `has_experts`: see `Situation`; each where that is
    known.

    Raises UserError where --executor does not go with these devices.
    """
    situation = Situation(config, devices, variables, engines, keeps_states, has_experts)
    found: dict[str, Finding] = {}
    for rule in (*RULES, *rules_of_transfer(config.transfer)):
        part = getattr(config, rule.part)
        value, usual = getattr(part, rule.setting), type(part).__dataclass_fields__[rule.setting].default
        if value != usual and rule.setting not in found and not rule.needs(situation):
            flag = f"--{rule.setting.replace('_', '-')}"
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            secret = options_of(type(part))[rule.setting][1].secret
            shown = flag if value is True or secret else f"{flag} {text}"
            remedy = f"Leave {flag} out"
            found[rule.setting] = Finding(rule.severity, _CODE, f"{shown} is ignored: {rule.why}", remedy)
    for key in config.speculation.without_effect():
        text = f"{key} of --speculative-config is ignored: how much is drafted follows from what is measured"
        found[key] = Finding("warning", _CODE, text, f"Leave {key} out")
    return tuple(found.values())
