"""A server process over the scripted engine whose requests wait after three tokens; signals tell the engine what to do.

SIGUSR1 lets the requests go on, SIGUSR2 makes the engine die. Its URL is the one line on standard output.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from homenode.server.http.config import ServerConfig
from homenode.server.models.served_model import ModelParts
from homenode.server.run import serve
from tests.server.fakes import ByteTokenizer, ScriptedClient


async def main(shutdown_timeout: float) -> int:
    client = ScriptedClient(hold_after=3)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, client.release)
    loop.add_signal_handler(signal.SIGUSR2, client.die)
    config = ServerConfig(port=0, shutdown_timeout=shutdown_timeout)
    models = [ModelParts(client, ByteTokenizer(), config)]
    return await serve(models, config, on_listening=lambda url: print(url, flush=True))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(float(sys.argv[1]))))
