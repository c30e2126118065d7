"""`homenode proxy`: one address in front of prefill and decode servers."""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
from typing import Any

import click

from homenode.cli.flags.logs import ServiceLogConfig
from homenode.cli.flags.many_values import spread
from homenode.cli.flags.settings import build, given_settings, shown_settings, with_settings
from homenode.cli.output.report import OUT, plain_errors
from homenode.logs.setup import begin_service_log, service_level
from homenode.server.check_files import check_doors
from homenode.server.proxy.config import ProxyConfig
from homenode.units import format_count

_LOG = logging.getLogger("homenode.proxy")
_URL = re.compile(r"https?://")
# Settings that are about prefill servers alone.
_OF_PREFILL = ("prefill_tries", "prefill_timeout", "min_handover_tokens")
_MANY = {"--prefill": _URL, "--decode": _URL}


class _UrlsCommand(click.Command):
    """`--prefill A B --decode C D`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args, _MANY))


@click.command(cls=_UrlsCommand)
@click.option("--show-config", is_flag=True, help="Print each setting, its value and where it came from, then exit.")
@with_settings(ProxyConfig, ServiceLogConfig)
@click.pass_context
def proxy(ctx: click.Context, /, show_config: bool, **values: Any) -> None:
    """Answer the OpenAI API with any number of prefill servers (--pd-role sender) and decode servers (--pd-role
    receiver).

    A prompt is computed by one of the former, its KV handed over to one of the latter, which answers. Servers need not
    be up yet. Every setting can also come from a variable HOMENODE_<SETTING> or from the file given by --config.
    """
    with plain_errors():
        config: ProxyConfig = build(ProxyConfig, values)
        if show_config:
            _show(ctx)
            return
        from homenode.server.http.descriptors import raise_descriptor_limit
        from homenode.server.http.stop_signals import run_service
        from homenode.server.proxy.run import bind, serve
        from homenode.server.proxy.upstreams import check_keys
        from homenode.server.settings_without_effect import server_settings_without_effect

        log: ServiceLogConfig = build(ServiceLogConfig, values)
        begin_service_log("proxy", log.level, log.log_format)
        for finding in server_settings_without_effect(config, given_settings(ctx), service_level(log.level)):
            _LOG.warning("%s", finding.text)
        raise_descriptor_limit()
        check_doors(config)
        check_keys(config)
        listener = bind(config)
        sys.exit(
            run_service(
                lambda stop: serve(
                    config, listener=listener, on_listening=lambda url: _announce(url, config), stop=stop
                )
            )
        )


def _announce(url: str, config: ProxyConfig) -> None:
    _LOG.info(
        "listening %s  %d prefill, %s", url, len(config.prefill), format_count(len(config.decode), "decode server")
    )
    if not config.prefill:
        _LOG.warning("no --prefill server is given: the decode servers compute all prompts")
        usual = {field.name: field.default for field in dataclasses.fields(config)}
        unused = [name for name in _OF_PREFILL if getattr(config, name) != usual[name]]
        for flag in (f"--{name.replace('_', '-')}" for name in unused):
            _LOG.warning("%s is ignored: there is no --prefill server", flag)


def _show(ctx: click.Context) -> None:
    from rich.table import Table

    table = Table("setting", "value", "from")
    for row in shown_settings(ctx, ProxyConfig, ServiceLogConfig):
        table.add_row(*row)
    OUT.print(table)
