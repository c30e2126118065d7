"""The things that the doors of a server need, files for the most part, looked at before anything is started."""

from __future__ import annotations

from homenode.errors import UnsupportedError
from homenode.server.http.config import HttpConfig, ServerConfig


def check_doors(config: HttpConfig) -> None:
    """Raises UserError that names a certificate, its key, a file of API keys, a folder of batches or CPUs of encoders
    that cannot be used, or --uds where there are no Unix domain sockets.
    """
    if isinstance(config, ServerConfig) and config.encoder_cpus:
        from homenode.server.models.picture_setup import check_encoder_cpus

        check_encoder_cpus(config.encoder_cpus)
    if isinstance(config, ServerConfig) and config.batch_dir is not None:
        from homenode.server.batches.batch_folder import check_folder

        check_folder(config.batch_dir)
    if config.ssl_certfile is not None and config.ssl_keyfile is not None:
        from homenode.server.doors.certificate import read_certificate

        read_certificate(config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs)
    if config.api_key_file is not None:
        from homenode.server.keys.key_file import KeyRows, read_key_file
        from homenode.server.keys.named_key import unnamed_keys

        read_key_file(config.api_key_file, KeyRows(), unnamed_keys(config.api_key))
    if config.otlp_traces_endpoint is not None:
        from homenode.server.tracing.endpoint import check_packages

        check_packages(config.otlp_traces_endpoint)
    if config.uds is not None:
        from homenode.host.bind.base.optional_calls import LOCAL_SOCKET, refused_needs

        if (finding := refused_needs().get(LOCAL_SOCKET)) is not None:
            raise UnsupportedError(f"--uds {config.uds}: {finding.text}", param="uds")
