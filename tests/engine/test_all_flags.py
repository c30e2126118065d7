"""Every flag of every command is known to this table: it is always looked at, or there is a case in which it would be
dropped, and is told or refused.

A new flag is added here: to ALWAYS where nothing else decides whether it is looked at, else to CASES with a line in
which it could not be. The flags of a plan (`plan`, `run`, `bind`, `verify`, `doctor`) are in
tests/pure/test_settings_read.py, over all strategies and kinds of hosts; the settings of an engine are in
tests/pure/test_settings_without_effect.py.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.cli.placement.plan_flags import PlanFlags
from homenode.cli.server.proxy import _announce
from homenode.engine.plan.rules.settings_without_effect import SETTINGS_OF_OTHERS
from homenode.server.proxy.config import ProxyConfig

SIMULATE = "simulate --from 2s/2n/8c --model builtin --workload closed:clients=1,in=8,out=2,n=1 --json"
SENDER = "serve --check-config --pd-role sender"

# The line after `homenode`, where OWN is the number of the process that runs the tests; the first flag of the case is
# the one that would be dropped.
CASES: dict[str, dict[str, str]] = {
    "serve": {
        "--show-config": "serve --show-config --check-config",
        "--models": "serve builtin --check-config --models x",
        "--log-requests": "serve --check-config --log-level warning --log-requests",
        "--log-outputs": "serve --check-config --log-level error --log-outputs",
        "--access-log": "serve --check-config --log-level warning --access-log",
        "--max-log-len": "serve --check-config --max-log-len 100",
        "--batch-file-size": "serve --check-config --batch-file-size 1MiB",
        "--models-memory": "serve --check-config --models-memory 1GiB",
        "--model-wait-timeout": "serve --check-config --model-wait-timeout 5s",
        "--models-lend-after": "serve --check-config --models-lend-after 5min",
        "--check-config": "serve --show-config --check-config",
        "--numa-nodes": "serve --check-config --numa-nodes 0",
        "--numa-mirror-tensors": "serve --check-config --numa local --numa-mirror-tensors x",
        "--numa-strict": "serve --check-config --numa-strict",
        "--numa-bind-nodes": "serve --check-config --numa-bind-nodes 0",
        "--numa-bind-cpus": "serve --check-config --numa-bind-cpus 0",
        "--cpu-threads-bind": "serve --check-config --numa-bind --cpu-threads-bind 0",
        "--numa-bind": "serve --check-config --numa-bind --numa local",
        "--expert-counts": "serve --check-config --expert-counts x",
        "--threads": "serve --check-config --cpu-threads-bind 0 --threads 2",
        "--enable-pd": "serve --check-config --enable-pd",
        "--pd-peer-alloc-port": "serve --check-config --pd-peer-alloc-port 5000",
        "--pd-pull-done-port": "serve --check-config --pd-pull-done-port 5000",
        "--pd-pull-mode": "serve --check-config --pd-pull-mode",
        "--pd-buffer-size": "serve --check-config --pd-buffer-size 1MiB",
        "--pd-proxy-host": f"{SENDER} --pd-proxy-host h",
        "--pd-proxy-port": f"{SENDER} --pd-proxy-port 5",
        "--pd-delay-pull": f"{SENDER} --pd-delay-pull",
        "--pd-in-place": f"{SENDER} --pd-pull-mode --pd-in-place",
        "--pd-use-cpu-offload": f"{SENDER} --pd-use-cpu-offload",
        "--pd-cpu-buffer-size": f"{SENDER} --pd-cpu-buffer-size 1MiB",
        "--uds-permissions": "serve --check-config --uds-permissions 660",
    },
    "generate": {
        "--top-p": "generate --prompt x --top-p 0.5 --max-model-len 1",
        "--top-k": "generate --prompt x --top-k 5 --max-model-len 1",
        "--numa-nodes": "generate --prompt x --numa-nodes 0",
        "--numa-mirror-tensors": "generate --prompt x --numa-mirror-tensors y",
        "--numa-strict": "generate --prompt x --numa-strict",
        "--numa-measured": "generate --prompt x --numa local --numa-measured /no/such",
    },
    "chat": {
        "--top-p": "chat /no/such/model --temperature 0 --top-p 0.5",
        "--top-k": "chat /no/such/model --temperature 0 --top-k 5",
        "--numa-nodes": "chat --numa-nodes 0",
        "--numa-mirror-tensors": "chat --numa-mirror-tensors y",
        "--numa-strict": "chat --numa-strict",
        "--numa-measured": "chat --numa local --numa-measured /no/such",
    },
    "host": {"--json": "host --json record /no/such/folder/file"},
    "host show": {"--from": "host --from 2s/2n/8c show --from 1s/1n/4c"},
    "plan": {
        "--explain": "plan --explain --requirements",
        "--before-start": "plan --weights builtin --before-start",
        "--html": "plan --html /no/such/file --requirements",
        "--requirements": "plan --weights builtin --requirements",
        "--weights": "plan --weights builtin --stages builtin",
        "--models": "plan --models x --stages builtin",
        "--models-memory": "plan --models-memory 1GiB",
        "--numa": "plan --numa shard",
        "--numa-nodes": "plan --numa-nodes 0",
        "--threads-per-core": "plan --threads-per-core 2",
        "--numa-mirror-tensors": "plan --numa-mirror-tensors x",
        "--numa-strict": "plan --numa-strict",
        "--numa-measured": "plan --numa-measured x",
        "--threads": "plan --threads 2",
        "--quantize": "plan --quantize q8_0",
        "--dtype": "plan --dtype float32",
        "--kv-cache-dtype": "plan --weights /no/such --numa local --kv-cache-dtype int8",
        "--batch": "plan --weights /no/such --numa local --batch 2",
        "--context": "plan --weights /no/such --numa local --context 2",
        "--stages": "plan --stages builtin --strategy fair",
        "--stage-devices": "plan --stage-devices cpu",
        "--layer-split": "plan --layer-split 1",
        "--enable-expert-parallel": "plan --enable-expert-parallel",
        "--expert-placement": "plan --expert-placement packed",
    },
    "simulate": {
        "--requests": f"{SIMULATE} --requests 3",
        "--speed": f"{SIMULATE} --speed 3",
        "--compare": f"{SIMULATE} --compare numa --numa shard",
        "--node-memory": f"{SIMULATE} --node-memory 64GiB",
        "--accelerator": f"{SIMULATE} --accelerator read_gb_s=1,tops=1,memory=8GiB,link_gb_s=1,link_us=1",
        "--numa-bind-nodes": f"{SIMULATE} --numa-bind-nodes 0",
        "--numa-bind-cpus": f"{SIMULATE} --numa-bind-cpus 0",
        "--cpu-threads-bind": f"{SIMULATE} --numa-bind --cpu-threads-bind 0",
        "--numa-bind": f"{SIMULATE} --numa-bind --numa local",
        "--numa-nodes": f"{SIMULATE} --numa-nodes 0",
        "--numa-mirror-tensors": f"{SIMULATE} --numa-mirror-tensors x",
        "--numa-strict": f"{SIMULATE} --numa-strict",
    },
    "run": {"--cpus": "run --cpus 0 --strategy fair -- true"},
    "bind": {
        "--cpus": "bind --pid OWN --cpus 0 --strategy fair",
        "--children": "bind --pid 1 --children --undo",
        "--memory": "bind --pid 1 --no-memory --undo",
        "--irqs": "bind --pid 1 --no-irqs --undo",
        "--strict": "bind --pid 1 --strict --undo",
        "--watch": "bind --pid 1 --watch 1 --dry-run",
        "--dry-run": "bind --pid 1 --dry-run --undo",
        "--undo": "bind --pid 1 --undo --workers 2",
    },
    "verify": {"--cpus": "verify --pid 1 --cpus 0 --strategy fair", "--repair": "verify --pid 1 --repair"},
    "doctor": {"--pid": "doctor --pid 1 --from 2s/2n/8c"},
    "proxy": {"--uds-permissions": "proxy --uds-permissions 660 --show-config"},
    "models": {"--json": "models --json fit builtin"},
    "models fit": {"--node-memory": "models fit builtin --from 1s/1n/2c --node-memory 64GiB"},
    "bench transfer": {"--batch": "bench transfer --batch 1MiB,2MiB"},
    "bench model": {
        "--numa-nodes": "bench model --numa-nodes 0",
        "--numa-mirror-tensors": "bench model --numa-mirror-tensors y",
        "--numa-strict": "bench model --numa-strict",
        "--numa-measured": "bench model --numa local --numa-measured /no/such",
    },
}

_HTTP = (
    "--host --port --api-key --shutdown-timeout --max-request-body --request-read-timeout --keep-alive-timeout "
    "--write-timeout --access-log --config --uds --ssl-certfile --ssl-keyfile --ssl-ca-certs --allowed-origins "
    "--root-path --api-key-file --ui --otlp-traces-endpoint"
)
_WEIGHTS = "--quantize --dtype --packed-cache --max-model-len --kv-cache-dtype"
_SCHEDULER = (
    "--max-num-batched-tokens --max-num-seqs --enable-chunked-prefill --max-num-queued-requests "
    "--max-num-queued-tokens --max-preemptions --request-timeout --kv-cache-memory --block-size --enable-prefix-caching"
)
_PARALLEL = "--data-parallel-size --tensor-parallel-size --pipeline-parallel-size --stage-devices"

# Looked at whatever else is given.
ALWAYS: dict[str, str] = {
    "serve": f"{_HTTP} {_WEIGHTS} {_SCHEDULER} {_PARALLEL} --runner --served-model-name --api-server-count "
    "--generation-config --enable-prompt-embeds --mmproj --encoder-cpus "
    "--log-format --otlp-traces-endpoint --metrics-names "
    "--max-sequences-per-request --max-stored-responses --stored-responses-size --stored-response-age "
    "--tool-call-parser --reasoning-parser --reasoning-format --strict-requests "
    "--thoughts-secret --sse-keep-alive --health-timeout --seed --backend --numa "
    "--threads-per-core --executor --kv-cache-prealloc --step-time "
    "--transfer-channel --pd-role --pd-alloc-fail-backoff-ttl --pd-pull-pending-ttl --pd-peer-host --pd-buffer-device "
    "--pd-secret --pd-allowed-peers "
    "--kv-transfer-config "
    "--local-cpu --disable-log-stats --tokenizer --chat-template --chat-template-timeout --links "
    "--special-tokens-in-content --limit-images --media-path --media-domains --encoder-cache-size --help-all "
    "--batch-dir --speculative --speculative-config --kv-events-config --metrics-names",
    # The settings are those of `serve`.
    "run-batch": "--input-file --output-file",
    # Those about prefill servers are told where there are none, see the last test.
    "proxy": f"{_HTTP} --log-format --otlp-traces-endpoint "
    "--show-config --prefill --decode --upstream-api-key --min-handover-tokens --prefill-tries "
    "--decode-tries --connect-timeout --prefill-timeout --first-byte-timeout --answer-timeout --idle-timeout "
    "--wait-timeout "
    "--sse-keep-alive --poll-interval --suspect-after --silent-after --lost-after --breaker-failures --breaker-pause "
    "--release-timeout --peer-keys --peer-plain-text",
    "generate": f"{_WEIGHTS} --prompt --max-tokens --temperature --seed --stop --ignore-eos --chat --threads --numa "
    "--links "
    "--threads-per-core --json",
    "chat": f"{_WEIGHTS} --system --max-tokens --temperature --seed --stop --threads --numa --threads-per-core "
    f"--tokenizer "
    "--chat-template --chat-template-timeout --links",
    "render": "--messages --tools --template --chat-template-kwargs --json",
    "parse": "--text --tools --template --format --reasoning-parser --chat-template-kwargs",
    "cache list": "--json",
    "cache verify": "--json --kv-disk-key --remove",
    "cache prune": "--json --older-than --size",
    "cache remove": "--json --all",
    "host": "--from",
    "host show": "--json",
    "plan": "--json",
    "simulate": f"--quantize --dtype --max-model-len --kv-cache-dtype {_SCHEDULER} {_PARALLEL} --from --hosts --model "
    "--workload --step-overhead --bench-model "
    "--threads --numa --threads-per-core --numa-measured --json --speculative --acceptance --disk",
    "run": "--strict --dry-run",
    "bind": "--pid --json --yes",
    "verify": "--pid --started-bound --watch --json",
    "doctor": "--json",
    "models fetch": "--revision --quantize --dtype --max-model-len --kv-cache-dtype --max-num-seqs",
    "models fit": "--from --quantize --dtype --max-model-len --kv-cache-dtype --max-num-seqs --json",
    "models remove": "--yes",
    "models served": "--server --api-key --json",
    "models load": "--server --api-key --json",
    "models unload": "--server --api-key --json",
    "models reload": "--server --api-key --json",
    "keys make": "--days --json",
    "keys show": "--json",
    "bench attention": "--rows --types --shapes --contexts --batch --threads --isa --repeat --json",
    "bench kernels": "--formats --shapes --tokens --threads --isa --repeat --json --plot",
    "bench model": "--prompt-tokens --gen-tokens --batch --context --threads --isa --quantize --dtype --packed-cache "
    "--kv-cache-dtype --numa --threads-per-core --repeat --phases --json",
    "bench nodes": "--isa --out --json",
    "bench ranks": "--ranks --threads --rows --columns --rounds --spin-us --json",
    "bench serve": "--clients --requests --prompt-tokens --gen-tokens --vocab-size --model --seed --api-key --html "
    "--json",
    "bench speculate": "--work --acceptance --tokens --turns --at-once --threads --isa --kv-cache-memory "
    "--max-model-len --speculative --speculative-model --num-speculative-tokens --speculative-config --json",
    "bench start": "--runs --flags --json",
    "bench step": "--sequences --steps --step-ms --vocab-size --temperature --threads --isa --json",
    "bench transfer": "--page-sizes --channel --rounds --json",
}
_PLAN_FLAGS = {f"--{field.name.replace('_', '-')}" for field in fields(PlanFlags)} | {"--from"}
_LOG_FLAGS = {"--log-level", "--log-format", "--verbose"}  # looked at first by every command that has them
_OF_ENGINES = {f"--{name.replace('_', '-')}" for name in SETTINGS_OF_OTHERS}


def commands(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """All of them, by what is typed after `homenode`."""
    if name:
        yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            yield from commands(found, f"{name} {word}".strip())


FLAGS = {
    name: {parameter.opts[0] for parameter in command.params if isinstance(parameter, click.Option)}
    for name, command in commands(cli)
}


@pytest.mark.parametrize("name", FLAGS)
def test_every_flag_is_in_the_table_and_none_that_is_not_there(name: str) -> None:
    listed = set(ALWAYS.get(name, "").split()) | set(CASES.get(name, {}))
    elsewhere = _OF_ENGINES if name in ("serve", "simulate", "generate", "chat") else set()
    if name == "run-batch":
        elsewhere = FLAGS["serve"]
    if "--ignore-openmp-mask" in FLAGS[name]:
        elsewhere = _PLAN_FLAGS
    assert FLAGS[name] - listed - elsewhere - _LOG_FLAGS == set(), "say in this table when they are looked at"
    assert listed - FLAGS[name] == set(), "there are no such flags"


@pytest.mark.parametrize(
    ("flag", "line"),
    [(flag, line) for of_command in CASES.values() for flag, line in of_command.items()],
    ids=lambda text: text.replace("/", "_"),
)
def test_a_flag_that_would_be_dropped_is_refused_or_told_by_its_name(flag: str, line: str) -> None:
    result = CliRunner().invoke(cli, shlex.split(line.replace("OWN", str(os.getpid()))))
    assert result.exit_code in (0, 1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    told = " ".join(result.stderr.split())
    negated = flag.replace("--", "--no-", 1)
    underscored = flag.removeprefix("--").replace("-", "_")
    assert any(word in told for word in (flag, negated, underscored)), told


@pytest.mark.parametrize(
    "line", ["serve --check-config --layer-split x", "serve --check-config --numa local --numa-measured /no/such"]
)
def test_a_value_that_cannot_be_read_is_refused_although_nothing_needs_it(line: str) -> None:
    result = CliRunner().invoke(cli, shlex.split(line))
    assert result.exit_code == 2, result.output


def test_settings_about_prefill_servers_are_told_where_there_are_none(caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {"prefill_tries": 5, "prefill_timeout": 3.0, "min_handover_tokens": 9}
    alone = ProxyConfig(decode=("https://there:1",), **given)
    _announce("http://here", alone)
    assert all(f"--{name.replace('_', '-')} is ignored" in caplog.text for name in given)
    caplog.clear()
    _announce("http://here", replace(alone, prefill=("https://there:2",)))
    assert "ignored" not in caplog.text
