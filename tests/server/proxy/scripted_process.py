"""A scripted server as a process of its own, to be frozen and killed: ROLE PORT. Its URL is the one line on standard
output.

A prefill server takes a tenth of a second for a prompt; a decode server answers with whether a ticket came.
"""

from __future__ import annotations

import asyncio
import sys

from tests.server.proxy.scripted import Asked, Connection, Scripted, computes


async def slowly(server: Scripted, asked: Asked, connection: Connection) -> None:
    await asyncio.sleep(0.1)
    await computes(server, asked, connection)


async def says(server: Scripted, asked: Asked, connection: Connection) -> None:
    connection.answer(200, {"ticket": asked.params.get("ticket"), "prompt": asked.json["prompt"]})


async def main(role: str, port: int) -> None:
    server = Scripted(role, slowly if role == "sender" else says, port=port)
    await server.start()
    print(server.url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
