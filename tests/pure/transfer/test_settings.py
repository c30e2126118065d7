"""Settings of KV transfer: the field's files, their bad twins, and which source wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from homenode.cli.flags.many_values import ManyValuesCommand
from homenode.cli.flags.settings import build, shown_settings, with_settings
from homenode.cli.server.transfer_file import take_transfer_file
from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.transfer.setup.settings import (
    TransferConfig,
    parse_networks,
    parse_ports,
    parse_signed_seconds,
    read_settings_file,
    typed_settings,
)

SENDER = """
local_cpu: False

enable_pd: True
transfer_channel: "hccl"
pd_role: "sender"
pd_pull_mode: True
pd_delay_pull: True
pd_pull_done_port: [7600, 7601]
pd_use_cpu_offload: True
pd_cpu_buffer_size: 21474836480   # 20 GB
pd_peer_host: "<hostIP>"
pd_proxy_host: "<hostIP>"
pd_proxy_port: 8500
pd_buffer_size: 32225472          # about 32 MB
pd_buffer_device: "npu"
"""
RECEIVER = """
local_cpu: False
enable_pd: True
transfer_channel: "hccl"
pd_role: "receiver"
pd_peer_host: "<hostIP>"
pd_pull_mode: True
pd_delay_pull: True
pd_peer_init_port: 7300
pd_peer_alloc_port: [7400, 7401]
pd_buffer_size: 128MiB
pd_buffer_device: "npu"
"""


@click.command(cls=ManyValuesCommand)
@with_settings(TransferConfig)
@click.pass_context
def command(ctx: click.Context, **values: Any) -> None:
    take_transfer_file(ctx, values)
    config = build(TransferConfig, values)
    assert isinstance(config, TransferConfig)
    ctx.obj.append(config)
    for row in shown_settings(ctx, TransferConfig):
        click.echo("|".join(row))


def built(*arguments: str, env: dict[str, str] | None = None) -> tuple[TransferConfig, str]:
    found: list[TransferConfig] = []
    result = CliRunner().invoke(command, list(arguments), env=env, obj=found)
    assert found, result.output or repr(result.exception)
    return found[0], result.output


def file_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "pd.yaml"
    path.write_text(text)
    return str(path)


def test_the_field_s_sender_file(tmp_path: Path) -> None:
    config, _ = built("--kv-transfer-config", file_of(tmp_path, SENDER))
    assert (config.on, config.pd_role, config.mode, config.transfer_channel) == (True, "sender", "pull-delay", "hccl")
    assert config.pd_pull_done_port == config.done_ports == (7600, 7601)
    assert (config.pd_buffer_size, config.pd_cpu_buffer_size, config.cpu_buffer_size) == (
        32225472,
        21474836480,
        21474836480,
    )
    assert (config.pd_proxy_port, config.pd_peer_host, config.pd_buffer_device) == (8500, "<hostIP>", "npu")


def test_the_field_s_receiver_file(tmp_path: Path) -> None:
    config, _ = built("--kv-transfer-config", file_of(tmp_path, RECEIVER))
    # One port may stand without a list.
    assert (config.pd_peer_init_port, config.pd_peer_alloc_port) == ((7300,), (7400, 7401))
    assert config.pd_buffer_size == 128 << 20
    assert config.done_ports == (7500, 7501)


def test_the_flag_and_the_variable_beat_the_file_and_the_file_the_default(tmp_path: Path) -> None:
    file = file_of(tmp_path, SENDER)
    config, shown = built(
        "--kv-transfer-config",
        file,
        "--transfer-channel",
        "shm",
        "--pd-pull-done-port",
        "1",
        "2",
        env={"HOMENODE_PD_PEER_HOST": "127.0.0.1"},
    )
    assert (config.transfer_channel, config.pd_pull_done_port, config.pd_peer_host) == ("shm", (1, 2), "127.0.0.1")
    lines = shown.splitlines()
    assert "--pd-buffer-size|32225472|kv transfer config" in lines
    assert "--transfer-channel|shm|flag" in lines
    assert "--pd-peer-host|127.0.0.1|environment" in lines
    assert "--pd-alloc-fail-backoff-ttl|2.0|default" in lines


def test_the_file_may_be_named_by_the_variable_and_beats_the_toml_file(tmp_path: Path) -> None:
    toml = tmp_path / "settings.toml"
    toml.write_text('pd-buffer-size = "1MiB"\npd-pull-pending-ttl = "1min"\n')
    env = {"HOMENODE_KV_TRANSFER_CONFIG": file_of(tmp_path, SENDER)}
    config, _ = built("--config", str(toml), env=env)
    assert (config.pd_buffer_size, config.pd_pull_pending_ttl) == (32225472, 60.0)


def test_the_same_from_python(tmp_path: Path) -> None:
    config = EngineConfig.of(None, {"kv_transfer_config": file_of(tmp_path, SENDER), "pd_role": "receiver"}).transfer
    assert (config.pd_role, config.pd_pull_done_port) == ("receiver", (7600, 7601))


def test_values_as_people_write_them() -> None:
    typed, _ = typed_settings(
        {
            "pd_buffer_size": 2e9,
            "pd_cpu_buffer_size": "8MiB",
            "pd_alloc_fail_backoff_ttl": "250ms",
            "pd_pull_done_port": "1,2",
        },
        "x",
    )
    assert typed == {
        "pd_buffer_size": 2_000_000_000,
        "pd_cpu_buffer_size": 8 << 20,
        "pd_alloc_fail_backoff_ttl": 0.25,
        "pd_pull_done_port": (1, 2),
    }
    assert typed_settings({"pd_proxy_host": None}, "x") == ({}, ())
    assert typed_settings({"pd_pull_backpressure_reserve_pct": 3}, "x")[0] == {"pd_pull_backpressure_reserve_pct": 3.0}


def test_everything_wrong_with_a_file_is_named_at_once() -> None:
    values = {
        "pd_rolle": "sender",
        "pd_role": "both",
        "pd_pull_mode": "yes please",
        "pd_buffer_size": "lots",
        "pd_cpu_buffer_size": 1.5,
        "pd_pull_done_port": [7600, 70000],
        "pd_proxy_port": 0,
        "transfer_channel": ["shm"],
        "pd_peer_alloc_port": [[7400]],
        "kv_transfer_config": "another.yaml",
    }
    with pytest.raises(UserError) as caught:
        typed_settings(values, "pd.yaml")
    for name in values:
        assert name in caught.value.message
    assert "pd.yaml" in caught.value.message


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: b: c", "!!python/object/apply:os.getcwd []", "\x00", "a: &a [*a]"])
def test_a_file_that_is_no_mapping_of_settings(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"pd\.yaml"):
        read_settings_file(Path(file_of(tmp_path, text)))


def test_files_that_are_not_there_empty_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_settings_file(tmp_path / "none.yaml")
    assert read_settings_file(Path(file_of(tmp_path, "# nothing\n"))).settings == {}
    with pytest.raises(UserError, match="larger than"):
        read_settings_file(Path(file_of(tmp_path, "# " + "x" * (1 << 20))))


def test_aliases_cannot_make_a_message_large(tmp_path: Path) -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{c}: &{c} [{','.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefghi", "bcdefghij", strict=True)
    )
    with pytest.raises(UserError) as caught:
        read_settings_file(Path(file_of(tmp_path, bomb + "pd_pull_mode: *j\n")))
    assert len(caught.value.message) < 4000
    with pytest.raises(UserError, match="kv_role is not taken"):
        read_settings_file(Path(file_of(tmp_path, bomb.replace("a: &a", "save_unfull_chunk: &a", 1) + "kv_role: *j\n")))


@pytest.mark.parametrize(
    ("values", "taken", "told"),
    [
        ({"enable_xpyd": True, "nixl_role": "receiver", "nixl_peer_init_port": 7320, "nixl_buffer_size": 1048576},
         {"enable_pd": True, "pd_role": "receiver", "pd_peer_init_port": (7320,), "pd_buffer_size": 1048576}, []),
        ({"pd_role": "sender", "nixl_role": "sender"}, {"pd_role": "sender"}, []),
        ({"save_unfull_chunk": True, "chunk_size": 256, "extra_config": {"a": [1]}}, {},
         ["save_unfull_chunk", "chunk_size", "extra_config"]),
        ({"p2p_of_a_newer_version": 1, "lmcache_instance_id": "a", "blend_min_tokens": 2}, {},
         ["p2p_of_a_newer_version", "lmcache_instance_id", "blend_min_tokens"]),
        ({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_producer", "kv_buffer_size": 1e9, "kv_rank": 0},
         {"pd_role": "sender", "pd_buffer_size": 10**9}, ["kv_connector", "kv_rank"]),
        ({"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}, {"pd_role": "receiver"}, ["kv_connector"]),
        ({"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}, {}, ["kv_connector", "kv_role"]),
        ({"remote_url": None}, {}, []),
    ],
)  # fmt: skip
def test_keys_of_other_programs(values: dict[str, object], taken: dict[str, object], told: list[str]) -> None:
    typed, lines = typed_settings(values, "x")
    assert typed == taken
    assert [line.split()[0] for line in lines] == told


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"pd_role": "sender", "nixl_role": "receiver"}, "pd_role and nixl_role contradict"),
        ({"pd_role": "sender", "kv_role": "kv_consumer"}, "pd_role and kv_role contradict"),
        ({"kv_connector": "NixlConnector", "kv_role": "kv_both"}, "kv_role kv_both is not taken: .*pd-role"),
        ({"kv_role": ["kv_both"]}, "kv_role is not taken"),
        ({"nixl_role": "both"}, "nixl_role: 'both' is none of sender, receiver"),
        ({"nixl_rolle": "sender"}, "nixl_rolle is no setting of it"),
        ({"pd_bufer_size": 1}, r"did you mean pd_buffer_size\?"),
        ({"kv_rank": 0}, "kv_rank is no setting of it"),
    ],
)
def test_keys_that_contradict_or_that_nobody_has(values: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        typed_settings(values, "x")


def test_json_in_place_of_a_file(tmp_path: Path) -> None:
    text = ' {"pd_role": "sender", "pd_buffer_size": 1048576, "chunk_size": 128}'
    for given in (text, json.loads(text)):
        file = read_settings_file(given)
        assert dict(file.settings) == {"pd_role": "sender", "pd_buffer_size": 1048576}
        assert [line.split()[0] for line in file.told] == ["chunk_size"]
    for wrong in ('{"kv_connector": "NixlConnector", ', '["pd_role"]'):
        with pytest.raises(UserError, match=r"neither a file nor JSON|holds a list"):
            read_settings_file(wrong)
    config = EngineConfig.of(None, {"kv_transfer_config": json.loads(text)})
    assert config.transfer.pd_role == "sender" and len(config.told) == 1


def test_ports() -> None:
    assert parse_ports("7600,7601") == parse_ports("7600 7601") == (7600, 7601)
    assert parse_ports(0) == (0,)
    for wrong in ("", "a", "-1", "65536", "1.5", "７６", True):
        with pytest.raises(UserError):
            parse_ports(wrong)


def test_networks() -> None:
    assert parse_networks("10.1.0.0/16, 10.2.0.7 fd00::/8") == ("10.1.0.0/16", "10.2.0.7/32", "fd00::/8")
    assert typed_settings({"pd_allowed_peers": ["10.1.0.0/16", "10.2.0.7"]}, "f")[0]["pd_allowed_peers"] == (
        "10.1.0.0/16",
        "10.2.0.7/32",
    )
    for wrong in ("peer", "10.1.0.1/16", "10.1", "10.1.0.0/33"):
        with pytest.raises(UserError, match="not addresses or networks"):
            parse_networks(wrong)


def test_a_negative_time_can_be_read_so_that_it_can_be_refused_with_the_rest() -> None:
    assert (parse_signed_seconds("-1"), parse_signed_seconds("-250ms"), parse_signed_seconds(3)) == (-1.0, -0.25, 3.0)
    assert built("--pd-pull-pending-ttl", "-1")[0].pd_pull_pending_ttl == -1.0


def test_on_by_role_unless_said_otherwise() -> None:
    assert not TransferConfig().on
    assert TransferConfig(pd_role="sender").on
    assert not TransferConfig(pd_role="sender", enable_pd=False).on
    assert TransferConfig(enable_pd=True).on


def test_modes_and_derived_values() -> None:
    assert [
        TransferConfig(pd_pull_mode=p, pd_delay_pull=d).mode for p, d in ((False, False), (True, False), (True, True))
    ] == [
        "push",
        "pull-eager",
        "pull-delay",
    ]
    assert TransferConfig(pd_peer_alloc_port=(7400, 0)).done_ports == (7500, 0)
    assert TransferConfig().done_ports == ()
    assert TransferConfig(pd_use_cpu_offload=True, pd_buffer_size=5).cpu_buffer_size == 5
    assert TransferConfig(pd_cpu_buffer_size=5).cpu_buffer_size == 0
