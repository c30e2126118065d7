"""Keys of LMCache's and LMCache-Ascend's files, and of vLLM's --kv-transfer-config, and what they are here."""

from __future__ import annotations

from collections.abc import Mapping

from homenode.equivalents.equivalent import Meaning, NoEffect, NotOffered, Taken

_CHUNKS = NoEffect("KV goes over in blocks of --block-size tokens")
_STORE = NoEffect("KV lies in main memory already (--kv-cache-memory); --kv-disk DIR keeps prefixes on disk too")
_HERE = NoEffect("both sides find each other and each other's time limits by themselves")
_BLENDING = NoEffect("KV is reused for equal beginnings of prompts alone")
_CONTROL = NoEffect("figures are under /metrics; there is no controller")
_CODE = NoEffect("no code of others is loaded")
_CACHE = NoEffect("the prefix cache is the KV memory itself (--enable-prefix-caching)")
_POOL = NoEffect("memory is taken when it is used (--kv-cache-prealloc)")
_SHARED = NoEffect("engines hand KV over between sender and receiver alone")

# Keys of LMCache's files that mean the same as a setting of ours by another name.
ALIASES: Mapping[str, str] = {
    "enable_xpyd": "enable_pd",
    "enable_nixl": "enable_pd",
    "nixl_role": "pd_role",
    "nixl_peer_host": "pd_peer_host",
    "nixl_receiver_host": "pd_peer_host",
    "nixl_peer_init_port": "pd_peer_init_port",
    "nixl_peer_alloc_port": "pd_peer_alloc_port",
    "nixl_peer_port": "pd_peer_init_port",
    "nixl_receiver_port": "pd_peer_init_port",
    "nixl_proxy_host": "pd_proxy_host",
    "nixl_proxy_port": "pd_proxy_port",
    "nixl_buffer_size": "pd_buffer_size",
}


def _each(keys: str, meaning: Meaning) -> dict[str, Meaning]:
    return dict.fromkeys(keys.split(), meaning)


# Keys that homenode has no setting for.
KEYS: Mapping[str, Meaning] = {
    "save_unfull_chunk": NoEffect("a prompt's whole KV goes over, the last block as far as it is full"),
    **_each("chunk_size", _CHUNKS),
    **_each(
        "max_local_cpu_size local_cpu_use_hugepages reserve_local_cpu_size local_disk local_disk_path_sharding "
        "max_local_disk_size remote_url remote_serde remote_config_url remote_storage_plugins storage_plugins "
        "external_backends audit_actual_remote_url use_gds cache_policy retrieve_locations store_location",
        _STORE,
    ),
    **_each("use_layerwise save_decode_cache pre_caching_hash_algorithm min_retrieve_tokens hit_miss_ratio", _CACHE),
    **_each("enable_scheduler_bypass_lookup external_lookup_client lookup_server_worker_ids lookup_timeout_ms", _CACHE),
    **_each("enable_blending", _BLENDING),
    **_each("enable_p2p enable_kv_events enable_async_loading blocking_timeout_secs", _SHARED),
    **_each(
        "enable_controller priority_limit app_id py_enable_gc enable_chunk_statistics pin_timeout_sec "
        "pin_check_interval_sec",
        _CONTROL,
    ),
    **_each("plugin_locations runtime_plugin_locations script_allowed_imports run_script_api_enabled", _CODE),
    **_each("enable_lazy_memory_allocator", _POOL),
    **_each("numa_mode", NoEffect("where KV lies follows from where it is computed (--numa, --cpu-threads-bind)")),
    **_each(
        "use_gpu_connector_v3 nixl_backends nixl_buffer_device nixl_enable_gc",
        NoEffect("what carries KV is --transfer-channel, and it lies in main memory"),
    ),
    **_each("enable_hidden_state_cache max_hidden_state_cpu_size", _STORE),
    "extra_config": NoEffect("settings of other programs' stores and carriers"),
    "pd_backend_mode": NoEffect("a hand-over never keeps others waiting, in any mode"),
    "pd_peer_query_port": NoEffect("the receiver is asked what it has on the port of the first contact"),
    "pd_bidirectional": NoEffect("KV goes from sender to receiver; a sender keeps that of its own prompts"),
    "pd_allocation_timeout_sec": NoEffect("how long a full receiver is waited for is --pd-alloc-fail-backoff-ttl"),
    "pd_skip_proxy_notification": NoEffect("the proxy asks the servers and waits for no notification"),
    **_each("pd_shutdown_timeout_sec pd_condition_poll_interval_sec", _HERE),
    "pd_max_prefill_len": NoEffect("a prompt may be as long as --max-model-len, and its KV as --pd-buffer-size"),
}

# Keys by what they begin with, among them those of newer versions.
FAMILIES: Mapping[str, Meaning] = {
    "blend_": _BLENDING,
    "p2p_": _SHARED,
    "mp_": _SHARED,
    "ec_": NoEffect("pictures are not read"),
    "lmcache_": _CONTROL,
    "controller_": _CONTROL,
    "internal_api_server_": _CONTROL,
    "chunk_statistics_": _CONTROL,
    "lazy_memory_": _POOL,
    "hidden_state": _STORE,
    "gds_": _STORE,
    "maru_": _STORE,
    "remote_": _STORE,
    "local_disk_": _STORE,
}

_OF_STORES = NoEffect("no KV is handed over by it: KV lies in main memory already (--kv-cache-memory)")
_OF_PAIRS = NotOffered(
    "a server has one part, which kv_both leaves open: give --pd-role sender (prefill) or receiver (decode), and what "
    "carries KV by --transfer-channel"
)
# Connectors of vLLM between a prefill and a decode server; the others keep KV for the same server.
_PAIRS = frozenset(
    """
    NixlConnector NixlPushConnector NixlPullConnector MooncakeConnector MoRIIOConnector P2pNcclConnector
    PyNcclConnector MultiConnector HiddenStatesConnector MooncakeLayerwiseConnector MooncakeConnectorV1
    AscendStoreConnector LLMDataDistCMgrConnector
    """.split()
)
_CONNECTOR = NoEffect("engines hand KV over in homenode's own way; what carries it is --transfer-channel")

# Keys of vLLM's --kv-transfer-config besides those of the role.
CONNECTOR_KEYS: Mapping[str, Meaning] = {
    "kv_connector": _CONNECTOR,
    "kv_buffer_size": Taken("pd_buffer_size"),
    "kv_ip": Taken("pd_peer_host"),
    **_each("kv_connector_extra_config kv_connector_module_path enable_permute_local_kv", _CONNECTOR),
    **_each("engine_id kv_rank kv_parallel_size kv_port kv_load_failure_policy kv_buffer_device", _HERE),
}


def role_of_connector(connector: object, role: object) -> Meaning:
    """Return what vLLM's `kv_role` is here: that of both parts depends on the connector."""
    roles: dict[str, Meaning] = {
        "kv_producer": Taken("pd_role", "sender"),
        "kv_consumer": Taken("pd_role", "receiver"),
        "kv_both": _OF_PAIRS if isinstance(connector, str) and connector in _PAIRS else _OF_STORES,
    }
    unknown = NotOffered("kv_role is kv_producer, kv_consumer or kv_both; here pd_role is sender or receiver")
    return roles.get(role, unknown) if isinstance(role, str) else unknown


def meaning_of_key(key: str) -> Meaning | None:
    """Return what a key of LMCache's files is here that no setting of ours has as its name; None: nobody knows it."""
    if key in ALIASES:
        return Taken(ALIASES[key])
    return KEYS.get(key) or next((FAMILIES[start] for start in FAMILIES if key.startswith(start)), None)
