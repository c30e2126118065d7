"""Variables that a cluster writes for a Service of some name are no settings of ours; what people write is."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from homenode.cli.flags.service_links import left_aside, service_of
from homenode.cli.flags.settings import settings_of
from homenode.cli.server.proxy import proxy
from homenode.cli.server.serve import serve
from homenode.engine.config import EngineConfig
from homenode.server.http.config import ServerConfig
from homenode.server.proxy.config import ProxyConfig

VERBS = {"serve": (serve, (EngineConfig, ServerConfig)), "proxy": (proxy, (ProxyConfig,))}
PORTS = [
    (verb, setting.variable, setting.flag)
    for verb, (_, configs) in VERBS.items()
    for config in configs
    for setting in settings_of(config)
    if setting.variable.endswith("_PORT")
]
ADDRESSES = ["tcp://10.96.7.7:8000", "udp://10.96.7.7:53", "sctp://10.0.0.1:1", "tcp://[fd00:10:96::7]:8000"]
REFUSED = ["eight", "tcp", "tcp://", "10.96.7.7:8000", "tcp://10.96.7.7", "http://10.96.7.7:8000", "tcp://[::1:8000"]


def links(service: str, address: str = "10.96.7.7", port: int = 8000) -> dict[str, str]:
    """All variables that a pod gets for a Service with one port."""
    name = service.upper().replace("-", "_")
    of_port = f"{name}_PORT_{port}_TCP"
    return {
        f"{name}_SERVICE_HOST": address,
        f"{name}_SERVICE_PORT": str(port),
        f"{name}_SERVICE_PORT_HTTP": str(port),
        f"{name}_PORT": f"tcp://{address}:{port}",
        of_port: f"tcp://{address}:{port}",
        f"{of_port}_PROTO": "tcp",
        f"{of_port}_PORT": str(port),
        f"{of_port}_ADDR": address,
    }


def run(verb: str, env: dict[str, str]) -> Result:
    further = ("--check-config",) if verb == "serve" else ("--decode", "http://127.0.0.1:9", "--show-config")
    return CliRunner().invoke(VERBS[verb][0], list(further), env=env)


@pytest.mark.parametrize(("verb", "variable", "flag"), PORTS)
@pytest.mark.parametrize("address", ADDRESSES)
def test_every_setting_that_a_service_could_be_called_like_is_left_as_it_is(
    verb: str, variable: str, flag: str, address: str
) -> None:
    assert service_of(variable, address) == variable.removesuffix("_PORT").lower().replace("_", "-")
    line = left_aside(variable, address, f"--{flag}")
    assert line is not None
    for word in (f"{variable}={address}", f"--{flag}", "enableServiceLinks: false"):
        assert word in line


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_goes_on_and_says_it_once(verb: str) -> None:
    result = run(verb, links("homenode"))
    assert result.exit_code == 0, result.output
    assert result.output.count("HOMENODE_PORT=tcp://10.96.7.7:8000 is left aside") == 1
    assert "HOMENODE_SERVICE" not in result.output


@pytest.mark.parametrize("value", REFUSED)
def test_what_no_cluster_writes_is_refused_by_name(value: str) -> None:
    assert service_of("HOMENODE_PORT", value) is None
    result = run("serve", {"HOMENODE_PORT": value})
    assert result.exit_code == 2
    assert "HOMENODE_PORT" in result.output


def test_a_port_by_variable_is_taken() -> None:
    result = CliRunner().invoke(serve, ["--show-config"], env={"HOMENODE_PORT": "8123", "COLUMNS": "300"})
    assert "8123" in result.output


@pytest.mark.parametrize("variable", ["HOMENODE_RAY_ADDRESS", "HOMENODE_PREFILL", "HOMENODE_SERVICE_PORT_HTTP"])
def test_an_address_in_another_variable_is_a_value(variable: str) -> None:
    assert service_of(variable, "tcp://10.96.7.7:8000") is None
