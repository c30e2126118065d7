"""Pages of KV memory over a socket, as the agents' connections use them: between frames, in shares of any size, with
partly filled pages.
"""

from __future__ import annotations

import contextlib
import random
import socket

import pytest

from homenode.compute.kv_memory import TILE_TOKENS
from homenode.compute.native.backend import NativeBackend
from homenode.compute.native.kv_backend import NativePageStreams
from homenode.compute.native.kv_memory import NativeKvMemory
from homenode.compute.ops import KvGeometry
from homenode.net.frames import FrameParser, frame
from homenode.transfer.net.connection import MAX_FRAME
from homenode.transfer.wire.stream import PagesReader, WriteQueue

_BLOCKS = 6
_TURNS = 100_000


def _memory(seed: int, block_size: int = 64) -> NativeKvMemory:
    memory = NativeBackend((-1,)).kv_pool(
        KvGeometry.uniform(layers=2, kv_heads=3, head_dim=20, block_size=block_size, dtype="bf16"), _BLOCKS
    )
    drawn = random.Random(seed)
    for block in range(_BLOCKS):
        for piece in memory.pieces(block, block_size // TILE_TOKENS):
            piece[:] = drawn.randbytes(len(piece))
    return memory


def _digests(memory: NativeKvMemory, blocks: list[int], tiles: list[int]) -> list[bytes]:
    """Each page by itself, through the copy loop's own digests."""
    return [memory.digests([block], 0, 1, count * TILE_TOKENS)[0] for block, count in zip(blocks, tiles, strict=True)]


def _small_buffers(*sockets: socket.socket) -> None:
    for one in sockets:
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def _until_complete(queue: WriteQueue, here: socket.socket, incoming: PagesReader, there: socket.socket) -> list[int]:
    """Write and read in turns; the tokens of what is through."""
    tokens: list[int] = []
    for _ in range(_TURNS):
        if incoming.complete:
            return tokens
        with contextlib.suppress(BlockingIOError):
            tokens += queue.flush(here) if queue else []
        with contextlib.suppress(BlockingIOError):
            incoming.receive(there)
    raise AssertionError("the pages did not come")


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_pages_come_between_frames_into_their_blocks(family: socket.AddressFamily) -> None:
    source, target, streams = _memory(1), _memory(2), NativePageStreams()
    blocks, places, tiles = [3, 0, 5], [1, 4, 2], [4, 4, 3]
    here, there = socket.socketpair() if family == socket.AF_UNIX else _over_tcp()
    with here, there:
        _small_buffers(here, there)
        queue = WriteQueue()
        queue.push(frame(b"header"))
        queue.push_pages(streams.sender(source, blocks, tiles), 7)
        parser = FrameParser(MAX_FRAME)
        queue.flush(here)
        while (header := parser.next()) is None:
            with contextlib.suppress(BlockingIOError):
                queue.flush(here)
            with contextlib.suppress(BlockingIOError):
                parser.feed(there.recv(21))  # past the frame's end
        assert header == b"header"
        queue.push(frame(b"after"))  # while pages are half written
        assert queue.tokens() == [7]
        first = PagesReader(streams.receiver(target, places, tiles), 1)
        first.take(parser)
        assert not first.complete
        first.receive(there)  # now there is room again
        through = queue.flush(here)
        queue.push_pages(streams.sender(source, [2], [1]), 8)
        assert [*through, *queue.tokens()] == [7, 8]
        through += _until_complete(queue, here, first, there)
        while queue and 8 not in through:
            try:
                through += queue.flush(here)
            except BlockingIOError:
                break
        while (after := parser.next()) is None:
            parser.feed(there.recv(13))
        assert after == b"after"
        second = PagesReader(streams.receiver(target, [0], [1]), 2)
        second.take(parser)
        through += _until_complete(queue, here, second, there)
        assert through == [7, 8] and not queue
    assert first.digests() == _digests(source, blocks, tiles) == _digests(target, places, tiles)
    assert second.digests() == _digests(source, [2], [1]) == _digests(target, [0], [1])


def test_a_changed_byte_changes_its_page_alone() -> None:
    source, target, streams = _memory(3), _memory(4), NativePageStreams()
    blocks, tiles = [0, 1, 2], [4, 4, 4]
    views = [view for block in blocks for view in source.pieces(block, 4)]
    wire = bytearray(b"".join(views))
    wire[len(wire) // 2] ^= 1
    receiver = streams.receiver(target, blocks, tiles)
    assert receiver.take(bytes(wire) + b"more") == len(wire)
    found, due = receiver.digests(), _digests(source, blocks, tiles)
    assert [one == right for one, right in zip(found, due, strict=True)] == [True, False, True]


def test_the_end_of_a_stream_is_told() -> None:
    source, target, streams = _memory(5), _memory(6), NativePageStreams()
    here, there = socket.socketpair()
    with there:
        _small_buffers(here, there)
        incoming = PagesReader(streams.receiver(target, [0], [4]), 1)
        with pytest.raises(BlockingIOError):
            incoming.receive(there)
        sender = streams.sender(source, [1], [4])
        assert sender.send(here.fileno(), 1) > 0 and not sender.done
        here.close()
        while incoming.receive(there):
            pass
        assert not incoming.complete
        with pytest.raises(BrokenPipeError):
            sender.send(there.fileno(), 1)


def test_pages_that_are_not_there_are_refused() -> None:
    memory, streams = _memory(7), NativePageStreams()
    for blocks, tiles in (([_BLOCKS], [1]), ([-1], [1]), ([0], [5]), ([0], [0]), ([0, 1], [1])):
        with pytest.raises(ValueError, match="KV pages over a socket"):
            streams.receiver(memory, blocks, tiles)
        with pytest.raises(ValueError, match="KV pages over a socket"):
            streams.sender(memory, blocks, tiles)


def _over_tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        return here, listener.accept()[0]
