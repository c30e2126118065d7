"""Frames: any cut of the stream gives the same messages, and nothing that arrives can hurt."""

from __future__ import annotations

import random
import socket

import msgspec
import numpy as np
import pytest

from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding, Replica
from homenode.engine.channels.messages import RunStep, ToWorker
from homenode.engine.config import EngineConfig
from homenode.engine.inputs import StepRows
from homenode.engine.messages import (
    Abort,
    Drain,
    EngineStats,
    MoveEngine,
    Output,
    Outputs,
    Ping,
    Submit,
    ToEngine,
    ToFront,
)
from homenode.engine.request import Request, TokenLogprob
from homenode.engine.step import Step, StepItem
from homenode.errors import CapacityError, PeerError
from homenode.host.plan.numa.demand import Decision
from homenode.net.message_frames import MAX_FRAME, FrameDecoder, FrameSocket, decode_body, encode_frame
from homenode.sampling import SamplingParams

REQUEST = Request(
    id=7,
    prompt_ids=[1, 2, 3],
    params=SamplingParams(max_tokens=3, seed=2**63, logit_bias={5: -1.0}, stop_token_ids=(4,)),
)
TO_ENGINE = [
    Submit([REQUEST]),
    Abort([1, 2], "stop"),
    Drain(1.5),
    Ping(3),
    MoveEngine(EngineBinding((1, 2), sets=((0, 1), (2,)))),
]
TO_FRONT = [
    Outputs(
        [Output(7, [1], [TokenLogprob(-0.5, [(1, -0.5)])], prompt_logprobs=[None, TokenLogprob(-1.0)], cached_tokens=3)]
    ),
    EngineStats(num_running=1, rejected={"draining": 2}),
]


@pytest.mark.parametrize(("messages", "kind"), [(TO_ENGINE, ToEngine), (TO_FRONT, ToFront)])
def test_every_cut_of_the_stream_gives_the_same_messages(messages: list[object], kind: object) -> None:
    stream = b"".join(encode_frame(m) for m in messages)
    for step in (1, 2, 3, 5, 7, 64, len(stream)):
        decoder = FrameDecoder()
        bodies = [body for at in range(0, len(stream), step) for body in decoder.feed(stream[at : at + step])]
        assert [decode_body(body, kind) for body in bodies] == messages
        assert decoder.held == 0


def test_a_config_crosses_whole() -> None:
    config = EngineConfig.of(
        "some/model", {"max_num_seqs": 3, "kv_cache_memory": "2MiB", "seed": 5, "disable_log_stats": True}
    )
    assert config.kv.kv_cache_memory == 2 * 2**20
    assert decode_body(encode_frame(config)[4:], EngineConfig) == config
    assignment = EngineAssignment(config, Replica(1, 2, EngineBinding((0,)), (0, 1), 5), Decision("shard", "it fits"))
    assert decode_body(encode_frame(assignment)[4:], EngineAssignment) == assignment


def test_figures_of_numpy_cross_as_plain_values() -> None:
    sent = EngineStats(compute={"threads": np.int32(2), "cpus": np.array([0, 1]), "share": np.float64(0.5)})
    assert decode_body(encode_frame(sent)[4:], ToFront).compute == {"threads": 2, "cpus": [0, 1], "share": 0.5}


def test_a_frame_over_the_limit_is_refused_at_both_ends() -> None:
    with pytest.raises(CapacityError, match="at most 100"):
        encode_frame(Submit([msgspec.structs.replace(REQUEST, prompt_ids=[1] * 200)]), limit=100)
    with pytest.raises(PeerError, match=f"announces {MAX_FRAME + 1} bytes"):
        FrameDecoder().feed((MAX_FRAME + 1).to_bytes(4, "little"))


def test_a_thousand_damaged_frames_only_give_named_errors_and_stay_bounded() -> None:
    rng = random.Random(1)
    valid = [encode_frame(m) for m in (*TO_ENGINE, *TO_FRONT)]
    refused = 0
    for _ in range(1000):
        data = bytearray(b"".join(rng.choices(valid, k=rng.randint(1, 3))))
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        decoder = FrameDecoder(limit=4096)
        try:
            for at in range(0, len(data), 16):
                for body in decoder.feed(data[at : at + 16]):
                    decode_body(body, ToEngine)
                assert decoder.held <= 4096 + 4
        except PeerError:
            refused += 1
    assert refused > 500


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x91" * 100_000, b"\x81\xa4type\xa4None", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff"]
)
def test_bodies_that_are_no_message(body: bytes) -> None:
    with pytest.raises(PeerError, match="no message"):
        decode_body(body, ToEngine)


def test_sockets_end_cleanly_or_inside_a_frame() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(encode_frame(Ping(1)) + encode_frame(Ping(2))[:3])
        theirs.close()
        reader = FrameSocket(ours)
        assert decode_body(reader.receive() or b"", ToEngine) == Ping(1)
        with pytest.raises(PeerError, match="inside a frame"):
            reader.receive()
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        assert FrameSocket(ours).receive() is None
        with pytest.raises(PeerError, match="gone"):
            FrameSocket(ours).send(Ping(1))


def test_a_step_brings_its_rows_to_a_worker() -> None:
    brought = StepRows(3, 2, memoryview(np.arange(4, dtype="<f4").tobytes()))
    step = Step(1, [], [], [StepItem(seq=7, start=2, count=4, new_blocks=[1], draws=1, rows=(brought,))])
    read = decode_body(encode_frame(RunStep(step))[4:], ToWorker)
    (rows,) = read.step.items[0].rows
    assert rows.first == 3 and rows.array().tolist() == [[0, 1], [2, 3]]
