"""The files of deploy/: every metric in an `expr` exists, the unit, containers and pods say what the pages promise."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.server.http.config import ServerConfig
from homenode.server.monitoring import metric_table
from homenode.server.monitoring.metric_table import rows_of
from homenode.units import parse_seconds
from tests.paths import ROOT
from tools.dashboard import ALERTS, DASHBOARD, ROWS, RULES, written

_CMAKE = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
DEPLOY = ROOT / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
_METRIC = re.compile(r"\b(?:homenode|vllm):\w+")
_OF_ENGINES = (*metric_table.ENGINE, *metric_table.REPLICA, *metric_table.MODEL, *metric_table.LIFE)
_OF_PROXIES = (*metric_table.PROXY_SERVER, *metric_table.PROXY)
SHOWN = {
    row.shown_name: row
    for row in (*rows_of(_OF_ENGINES), *rows_of(_OF_PROXIES), *metric_table.FRONT, *metric_table.PROXY_COUNTED)
}
PARTS = {
    f"{name}_{part}" for name, row in SHOWN.items() if row.kind == "histogram" for part in ("bucket", "sum", "count")
}


def test_dashboard_and_alerts_are_up_to_date() -> None:
    """`python -m tools.dashboard` writes them."""
    for path, text in written().items():
        assert path.read_text(encoding="utf-8") == text, path


@pytest.mark.parametrize("path", [DASHBOARD, ALERTS], ids=lambda path: path.name)
def test_every_metric_in_an_expr_is_in_the_table_of_metrics(path: Any) -> None:
    named = set(_METRIC.findall(path.read_text(encoding="utf-8")))
    assert len(named) > 5 and named <= SHOWN.keys() | PARTS, sorted(named - SHOWN.keys() - PARTS)


LABELS = {"model_name", "instance", "engine", "node", "role", "server", "le", "job"}


def expressions() -> Iterator[str]:
    for row in ROWS.values():
        for panel in row:
            yield from panel.curves.values()
    yield from (rule.expr for rule in RULES)


@pytest.mark.parametrize("expr", list(expressions()))
def test_an_expr_names_labels_that_its_metrics_have(expr: str) -> None:
    own = {
        label
        for name in _METRIC.findall(expr)
        for label in SHOWN[re.sub("_(bucket|sum|count)$", "", name) if name not in SHOWN else name].labels
    }
    named = set(re.findall(r"(\w+)=~?\"", expr))
    for group in re.findall(r"\bby \(([^)]*)\)", expr):
        named |= {each.strip() for each in group.split(",")}
    assert named <= own | LABELS, named - own - LABELS


def test_rules_have_a_severity_and_say_what_to_do() -> None:
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) == len(RULES)
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["description"] and re.fullmatch(r"\d+m", rule["for"])


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "homenode.service")
    return parser["Service"]


def test_the_unit_waits_for_answers_and_notices_a_hang() -> None:
    service = unit()
    assert (service["Type"], service["NotifyAccess"], service["Restart"]) == ("notify", "main", "on-failure")
    assert float(service["TimeoutStopSec"]) > ServerConfig().shutdown_timeout
    assert float(service["WatchdogSec"]) > 2 * ServerConfig().health_timeout
    assert service["LimitMEMLOCK"] == "infinity" and int(service["LimitNOFILE"]) >= 65536
    assert service["NoNewPrivileges"] == "yes" and service["DynamicUser"] == "yes"
    assert "AF_UNIX" in service["RestrictAddressFamilies"].split()
    assert "~@resources" not in service["SystemCallFilter"]


def test_the_folders_of_the_unit_are_ones_that_can_be_used() -> None:
    service = unit()
    assert service["DynamicUser"] == "yes" and "RuntimeDirectoryPreserve" not in service  # it would be a link
    text = (DEPLOY / "homenode.service").read_text(encoding="utf-8")
    variables = dict(re.findall(r"(?m)^Environment=(\w+)=(.*)$", text))
    folders = {"%C": service["CacheDirectory"], "%t": service["RuntimeDirectory"]}
    assert {"HF_HOME", "HOMENODE_STATE_DIR", "XDG_CACHE_HOME"} == variables.keys()
    for variable, folder in variables.items():
        root, _, rest = folder.partition("/")
        assert (rest or "homenode") == folders[root], variable  # homenode: what own_cache_folder adds


def starts(words: list[str]) -> None:
    """The words of a command of homenode are ones that it knows; what they name need not be there."""
    said = CliRunner().invoke(cli, [*words, "--help"])
    assert said.exit_code == 0, said.output


def test_the_unit_starts_a_command_that_there_is() -> None:
    program, command, *flags = shlex.split(unit()["ExecStart"])
    assert program.endswith("/bin/homenode") and flags[::2] == ["--config"]
    starts([command])


def test_the_container_file_has_two_stages_pinned_packages_and_no_root() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("FROM ")] == ["debian:bookworm-slim"] * 2
    for line in lines:
        if "apt-get install" in line:
            packages = line.split("--no-install-recommends")[1].split("&&")[0].split()
            assert packages and all("=" in package for package in packages), line
        if "pip install" in line or "pip wheel" in line:
            for command in re.findall(r"pip (?:install|wheel) [^&]*", line):
                assert "--require-hashes" in command or "--no-deps" in command, command
    assert [line for line in lines if line.startswith("USER ")][-1:] == ["USER 10001:10001"]
    copied = [
        name for line in lines if line.startswith("COPY ") and "--from" not in line for name in line.split()[1:-1]
    ]
    assert copied and all((ROOT / name).exists() for name in copied)
    (entry,) = (json.loads(line.split(" ", 1)[1]) for line in lines if line.startswith("ENTRYPOINT "))
    (usual,) = (json.loads(line.split(" ", 1)[1]) for line in lines if line.startswith("CMD "))
    assert entry == ["homenode"]
    starts(usual)


EXTRAS_OF = {"--kv-events-config": "events", "--otlp-traces-endpoint": "otel"}
MANIFESTS = [*KUBERNETES, DEPLOY / "compose.yaml"]


def test_the_container_file_installs_what_the_flags_of_manifests_need() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    (lock,) = re.findall(r"/opt/homenode/bin/pip install [^&]*--requirement (\S+)", text)
    pinned = set(re.findall(r"(?m)^([\w-]+)(?:\[\w+\])?==", (ROOT / lock).read_text(encoding="utf-8")))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {flag for path in MANIFESTS for flag in re.findall(r"--[a-z-]+", path.read_text(encoding="utf-8"))}
    needed = {extra for flag, extra in EXTRAS_OF.items() if flag in named}
    assert "events" in needed
    for extra in needed:
        assert {re.split(r"[<>=]", package)[0] for package in extras[extra]} <= pinned, (extra, lock)
    assert "import homenode._native" in text  # a wheel whose core could not be compiled is refused


def test_manifests_do_not_take_each_others_names_and_pods() -> None:
    taken: dict[tuple[str, str], str] = {}
    for path in KUBERNETES:
        labels = set()
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            name = (document["kind"], document["metadata"]["name"])
            assert taken.setdefault(name, path.name) == path.name, name
            labels.add(document["spec"].get("template", document)["metadata"].get("labels", {}).get(_NAME))
        for label in labels - {None}:
            assert taken.setdefault((_NAME, label), path.name) == path.name, label


_NAME = "app.kubernetes.io/name"


def test_compose_has_no_privileges_and_looks_whether_it_lives() -> None:
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"].values()
    assert service["cap_drop"] == ["ALL"] and service["cap_add"] == ["SYS_NICE"] and "privileged" not in service
    assert "/livez" in service["healthcheck"]["test"][-1]
    assert parse_seconds(service["stop_grace_period"]) > ServerConfig().shutdown_timeout
    starts(service["command"])


def containers(document: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(pod, container)"""
    if isinstance(document, dict) and "containers" in document:
        yield from ((document, each) for each in document["containers"])
    elif isinstance(document, dict):
        for value in document.values():
            yield from containers(value)


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_pods_have_whole_cpus_and_both_probes(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    found = [each for document in yaml.safe_load_all(text) for each in containers(document)]
    assert found
    for pod, container in found:
        asked, most = container["resources"]["requests"], container["resources"]["limits"]
        assert asked == most and asked["cpu"].isdecimal()
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        rights = container["securityContext"]
        assert rights["capabilities"] == {"drop": ["ALL"], "add": ["SYS_NICE"]}
        assert not rights["allowPrivilegeEscalation"] and pod["securityContext"]["runAsNonRoot"]
        assert pod["terminationGracePeriodSeconds"] > ServerConfig().shutdown_timeout
        starts([container["args"][0]])
    for word in ("static", "topology", "hugepages-2Mi", "SYS_NICE"):
        assert re.search(word, text, re.IGNORECASE), word


@pytest.mark.skipif(_CMAKE is None, reason="there is no cmake")
@pytest.mark.parametrize("cpus", [0, 1, 2, 64])
def test_the_core_is_configured_wherever_a_container_is_made(cpus: int, tmp_path: Path) -> None:
    """CMake finds no CPU where there is no /proc, as in the root of an image."""
    (asked,) = re.findall(r"^cmake_host_system_information\(.*\n(?:.*\n)*", (ROOT / "CMakeLists.txt").read_text(), re.M)
    script = tmp_path / "told.cmake"
    script.write_text(f"set(HOMENODE_CPUS {cpus})\n{asked.partition(chr(10))[2]}")
    seen = subprocess.run([str(_CMAKE), "-P", script], capture_output=True, text=True, timeout=60)
    assert seen.returncode == 0 and f"on {max(1, cpus)} CPUs" in seen.stdout, seen.stderr
