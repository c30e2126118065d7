"""What docs/compatibility.md calls stable is there, and what it says of it is what the code does."""

from __future__ import annotations

import importlib
import inspect
import re

import homenode
from homenode import errors
from homenode.cli.flags.settings import settings_of
from homenode.cli.output.report import exit_code
from homenode.engine.config import EngineConfig
from homenode.errors import HomenodeError
from homenode.server.http.config import ServerConfig
from homenode.server.monitoring.metric import PREFIX
from homenode.server.proxy.config import ProxyConfig
from tests.paths import ROOT

PAGE = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")


def test_every_error_class_is_exported_and_in_the_tree_that_the_module_draws() -> None:
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert set(errors.__all__) == classes
    assert all(issubclass(getattr(errors, name), HomenodeError) for name in classes)
    for name in classes:
        assert re.search(rf"(?m)^ .*\b{name}\b", errors.__doc__ or ""), name


def test_the_public_names_are_those_of_the_page() -> None:
    row = re.search(r"^\| Python \| (.*)$", PAGE, re.MULTILINE)
    assert row is not None
    assert set(re.findall(r"`homenode\.(\w+)`", row[1])) == set(homenode.__all__)


def test_every_name_of_the_package_on_the_page_is_there() -> None:
    for dotted in re.findall(r"`(homenode\.[\w.]+)`", PAGE):
        module, _, name = dotted.rpartition(".")
        try:
            importlib.import_module(dotted)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), name), dotted


def test_the_exit_codes_are_those_of_the_page() -> None:
    text = re.search(r"Exit codes of commands: (.*?)\n\n", PAGE, re.DOTALL)
    assert text is not None
    codes = {int(code) for code in re.findall(r"(?:^|; )(\d+) ", text[1].replace("\n", " "))}
    source = (ROOT / "src/homenode/cli/output/report.py").read_text(encoding="utf-8")
    ends = {int(code) for code in re.findall(r"sys\.exit\((\d+)\)", source)}
    assert codes == {0} | ends | {
        exit_code(kind("a message")) for kind in (errors.UserError, errors.HostError, errors.InternalError)
    }


def test_the_wire_protocol_is_where_the_page_says() -> None:
    place = re.search(r"`PROTOCOL` in `(homenode[\w.]+)`", PAGE)
    assert place is not None
    oldest, newest = importlib.import_module(place[1]).PROTOCOL
    assert oldest <= newest


def test_every_setting_is_a_flag_a_variable_and_a_key_of_the_file() -> None:
    for config in (ServerConfig, EngineConfig, ProxyConfig):
        for setting in settings_of(config):
            assert setting.variable == f"HOMENODE_{setting.flag.upper().replace('-', '_')}"


def test_every_metric_is_under_the_name_of_the_page() -> None:
    assert f"`{PREFIX}`" in PAGE
