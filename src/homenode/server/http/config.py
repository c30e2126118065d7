"""Settings of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass, fields

from homenode.errors import UserError
from homenode.options import option
from homenode.server.doors.setting_values import parse_origins, parse_permissions, parse_root_path
from homenode.server.tracing.endpoint import parse_endpoint
from homenode.units import parse_bytes, parse_seconds


def _names(text: str) -> tuple[str, ...]:
    """The comma-separated entries of `text`, without blanks around them. Raises UserError where there is none."""
    names = tuple(part.strip() for part in str(text).split(",") if part.strip())
    if not names:
        raise UserError("no name is given; give one, or leave this setting out")
    return names


def _keys(text: str) -> tuple[str, ...]:
    """The comma-separated keys in `text`, without blanks around them; empty ones are kept, for who reads settings to
    refuse.
    """
    return tuple(part.strip() for part in str(text).split(","))


def _cpus(text: str) -> tuple[int, ...]:
    """The CPUs of a list. Raises UserError where there is none."""
    from homenode.cpuset import parse_cpu_list

    if not (cpus := parse_cpu_list(text)):
        raise UserError("no CPU is given; give a list such as 0-7,16, or leave this setting out")
    return cpus


def _tool_parser(name: str) -> str:
    """Raises UserError for a name that no format of tool calls has."""
    from homenode.chat.choice import choose

    choose(None, tool_parser=name)
    return name


def _reasoning_parser(name: str) -> str:
    """Raises UserError for a name that no form of thoughts has."""
    from homenode.chat.choice import choose

    choose(None, reasoning_parser=name)
    return name


@dataclass(frozen=True)
class HttpConfig:
    """Settings that every HTTP server of ours can be told: where it listens, who may ask, and how long its clients may
    take.
    """

    host: str = option(
        "127.0.0.1", "Address to listen on. The default answers this machine only; 0.0.0.0 answers the network."
    )
    port: int = option(8000, "TCP port; 0 takes a free one and prints it.", minimum=0, maximum=65535)
    uds: str | None = option(
        None, "Path of a unix socket to listen on, in place of --host and --port; removed at the end.", metavar="PATH"
    )
    uds_permissions: str = option(
        "600", "Who may connect to the unix socket, in octal digits; 660 lets its group in.", parse=parse_permissions
    )
    ssl_certfile: str | None = option(
        None,
        "Certificate chain in PEM: the server speaks TLS. It is read again when it changes; connections stay.",
        metavar="FILE",
    )
    ssl_keyfile: str | None = option(None, "Private key of --ssl-certfile, in PEM, not encrypted.", metavar="FILE")
    ssl_ca_certs: str | None = option(
        None,
        "Authorities in PEM: only clients that show a certificate which one of them has signed are answered.",
        metavar="FILE",
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "Sites whose pages may ask from a browser (CORS), separated by commas, such as https://app.example; * is every "
        "page.",
        parse=parse_origins,
    )
    root_path: str = option(
        "",
        "Path under which a reverse proxy shows this server, such as /llm; requests come with it or without.",
        parse=parse_root_path,
    )
    api_key: tuple[str, ...] = option(
        (),
        "Keys, separated by commas, of which clients must send one, as Authorization: Bearer KEY or x-api-key: KEY. "
        "Only probes answer without one: /health, /livez, /readyz, /ping.",
        parse=_keys,
        secret=True,
    )
    api_key_file: str | None = option(
        None,
        "TOML file with a table [keys.NAME] for each key: key, and if wished requests_per_minute, tokens_per_minute "
        "and "
        "concurrent_requests. It is read again when it changes.",
        metavar="FILE",
    )
    shutdown_timeout: float = option(
        30.0, "How long running requests may go on after SIGTERM, such as 30s.", parse=parse_seconds, minimum=0
    )
    max_request_body: int = option(
        16 * 2**20, "Largest request body, such as 16MiB; larger ones get 413.", parse=parse_bytes, minimum=1024
    )
    request_read_timeout: float = option(
        30.0,
        "How long a client may take to send a request's head, and again its body.",
        parse=parse_seconds,
        minimum=0.1,
    )
    keep_alive_timeout: float = option(
        15.0, "How long an idle connection is kept open.", parse=parse_seconds, minimum=0.1
    )
    write_timeout: float = option(
        60.0,
        "How long a client may take nothing of an answer, streamed or whole, before its connection is closed and its "
        "request aborted.",
        parse=parse_seconds,
        minimum=0.1,
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "Collector of OpenTelemetry that is sent a trace of each request, as OTLP over HTTP, such as "
        "http://127.0.0.1:4318/v1/traces. OTEL_TRACES_SAMPLER says of which; needs homenode[otel].",
        parse=parse_endpoint,
        metavar="URL",
    )
    access_log: bool = option(False, "Log a line for every HTTP request.")
    ui: bool = option(True, "Whether browsers get a page at `/`: chat, the machine, plans. Off: --no-ui.")

    def __post_init__(self) -> None:
        """Raises UserError for settings that contradict each other."""
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            given, lacking = ("certfile", "keyfile") if self.ssl_keyfile is None else ("keyfile", "certfile")
            raise UserError(f"--ssl-{given} is given without --ssl-{lacking}; TLS needs both", param=f"ssl_{lacking}")
        if self.ssl_ca_certs is not None and self.ssl_certfile is None:
            raise UserError(
                "--ssl-ca-certs is given without --ssl-certfile; certificates of clients are shown over TLS alone",
                param="ssl_ca_certs",
            )
        usual = {field.name: field.default for field in fields(HttpConfig)}
        if self.uds is not None and (self.host, self.port) != (usual["host"], usual["port"]):
            raise UserError(
                "--uds is given together with --host or --port; a server listens on one of them", param="uds"
            )
        if self.uds is None and self.uds_permissions != usual["uds_permissions"]:
            raise UserError(
                "--uds-permissions is given without --uds, the socket that they are for", param="uds_permissions"
            )

    @property
    def scheme(self) -> str:
        """Return the scheme of the addresses that clients use."""
        return "https" if self.ssl_certfile else "http"

    @property
    def asks_keys(self) -> bool:
        """Return whether clients have to send a key."""
        return bool(self.api_key or self.api_key_file)


@dataclass(frozen=True)
class ServedModelConfig:
    """The settings that the server can be told of one model: its names, and how its answers are made."""

    served_model_name: tuple[str, ...] = option(
        (),
        "Names clients may give for the model, separated by commas; the first is the one in answers. Default: the "
        "model's own.",
        parse=_names,
    )
    special_tokens_in_content: bool = option(
        True,
        "Whether the name of a special token in a message becomes that token. Off: it stays text.",
    )
    tool_call_parser: str | None = option(
        None,
        "Format in which the model writes tool calls, such as hermes. Default: the one that the chat template shows.",
        parse=_tool_parser,
    )
    reasoning_parser: str | None = option(
        None,
        "Form in which the model writes its thoughts, such as deepseek_r1. Default: the one that the chat template "
        "shows.",
        parse=_reasoning_parser,
    )
    reasoning_format: str = option(
        "auto",
        "Where thoughts go: auto tells them apart, in reasoning_content; none leaves them in the content as the model "
        "wrote them.",
        choices=("auto", "none"),
    )
    generation_config: str = option(
        "auto",
        "Where sampling parameters a request leaves open come from; auto is the model's generation_config.json, "
        "none is neutral values.",
        choices=("auto", "none"),
    )
    limit_images: int = option(8, "Most images in one request.", minimum=0, maximum=1024)
    media_path: str | None = option(
        None, "Folder whose files a request may name as images, as file: URLs. Default: none may be.", metavar="DIR"
    )
    media_domains: tuple[str, ...] = option(
        (),
        "Hosts, separated by commas, from which images of a request may be fetched over HTTP. Default: none are.",
        parse=_names,
        metavar="HOST,...",
    )
    encoder_cache_size: int = option(
        256 * 2**20,
        "Most bytes of encoded images that are kept, so that the same image is not encoded again, such as 256MiB.",
        parse=parse_bytes,
        minimum=0,
    )
    encoder_cpus: tuple[int, ...] = option(
        (),
        "CPUs on which images are encoded, such as 0-7, one thread on each. Default: those of the text model, behind "
        "which the encoder stands back.",
        parse=_cpus,
        metavar="LIST",
    )
    max_sequences_per_request: int = option(2048, "Most sequences (prompts times n) in one HTTP request.", minimum=1)
    log_requests: bool = option(
        False, "Log the prompt of every request and how it is sampled; else no text of a request is logged."
    )
    log_outputs: bool = option(False, "Log the answers to requests.")
    max_log_len: int = option(
        2048, "Most characters of a prompt, and of an answer, that are logged.", minimum=1, maximum=2**18
    )


@dataclass(frozen=True)
class ServerConfig(ServedModelConfig, HttpConfig):
    """Settings that the server of a model can be told: of itself, and of the model."""

    api_server_count: int | None = option(
        None,
        "Processes that answer HTTP and turn text into tokens, on the one port. Default: --data-parallel-size.",
        minimum=1,
        maximum=1024,
    )
    strict_requests: bool = option(
        False,
        "Refuse requests with fields that are not known, instead of ignoring these and naming them in the header "
        "x-homenode-ignored.",
    )
    sse_keep_alive: float = option(
        15.0, "A comment line is sent on a stream that was silent this long. 0: never.", parse=parse_seconds, minimum=0
    )
    max_stored_responses: int = option(
        1024,
        "Most responses of /v1/responses that are kept for previous_response_id; older ones give way. 0: none is kept.",
        minimum=0,
        maximum=1_000_000,
    )
    stored_responses_size: int = option(
        256 * 2**20, "Most bytes that the kept responses take, such as 256MiB.", parse=parse_bytes, minimum=0
    )
    stored_response_age: float = option(
        86400.0, "How long a response is kept, such as 24h.", parse=parse_seconds, minimum=0
    )
    batch_dir: str | None = option(
        None,
        "Folder that keeps files and batches over restarts: turns on /v1/files and /v1/batches, whose requests are "
        "computed when nobody else has work.",
        metavar="DIR",
    )
    batch_file_size: int = option(
        200 * 2**20, "Largest file of /v1/files, such as 200MiB.", parse=parse_bytes, minimum=1024
    )
    thoughts_secret: str | None = option(
        None,
        "Secret with which thoughts that clients keep (encrypted_content) are sealed. Servers of the same secret read "
        "each other's. Default: drawn at every start.",
        secret=True,
    )
    metrics_names: str = option(
        "homenode",
        "Names of figures under /metrics: homenode, or vllm, which shows those that vLLM has by its names, too, for "
        "its dashboards, routers and scalers.",
        choices=("homenode", "vllm"),
    )
    health_timeout: float = option(
        5.0, "How long the engine loop may take to answer before /health says 503.", parse=parse_seconds, minimum=0.1
    )
