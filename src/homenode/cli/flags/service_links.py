"""Variables that Kubernetes puts into every pod of a namespace for each of its Services: no settings, whatever they are
called.

A Service called `homenode` gives `HOMENODE_PORT=tcp://10.96.7.7:8000`, after the links of Docker, which wrote the same.
Source: the Kubernetes documentation on Services ("Environment variables") and on `enableServiceLinks` of a pod.
"""

from __future__ import annotations

import re

_LINK = re.compile(r"(?:tcp|udp|sctp)://(?:\[[0-9a-fA-F:.]+\]|[\w.-]+):\d{1,5}", re.ASCII)
_NAME = re.compile(r"(\w+?)_PORT(?:_\d+_(?:TCP|UDP|SCTP))?", re.ASCII)


def service_of(variable: str, value: str) -> str | None:
    """The Service whose address this variable holds; None where it is no such address."""
    name = _NAME.fullmatch(variable)
    return name[1].lower().replace("_", "-") if name and _LINK.fullmatch(value) else None


def left_aside(variable: str, value: str, flag: str) -> str | None:
    """A line that tells why the variable is not taken for the setting `flag`; None for a value that is one."""
    service = service_of(variable, value)
    if service is None:
        return None
    return (
        f"the variable {variable}={value} is left aside: it is the address of a Service called {service}, which "
        f"Kubernetes writes into its pods, and sets no {flag}; `enableServiceLinks: false` keeps such variables out"
    )
