"""The front of `bench step`: a process that takes the engine's frames and makes text of them: `python -m
homenode.bench.engine.step_front FD VOCABULARY`.

It prints the CPU time it spent on that, in seconds.
"""

from __future__ import annotations

import socket
import sys
import time

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from homenode.engine.api.completion import Answer
from homenode.engine.messages import Outputs, Ping, ToFront
from homenode.model.tokenizer.tokenizer import Tokenizer
from homenode.net.message_frames import FrameSocket, decode_body


def made_up_tokenizer(size: int) -> Tokenizer:
    """A byte-level vocabulary of `size` words."""
    library = Library(models.BPE(vocab={f"\u0120{index:x}": index for index in range(size)}, merges=[]))
    library.decoder = decoders.ByteLevel()
    return Tokenizer(library, {}, {})


def main(arguments: list[str]) -> None:
    """Serve one run, to the end of the stream."""
    descriptor, size = (int(argument) for argument in arguments)
    tokenizer = made_up_tokenizer(size)
    engine = FrameSocket(socket.socket(fileno=descriptor))
    engine.send(Ping(0))  # ready
    begin = time.process_time()
    answers: dict[int, Answer] = {}
    while (body := engine.receive()) is not None:
        message = decode_body(body, ToFront)
        if isinstance(message, Outputs):
            for output in message.outputs:
                answer = answers.get(output.id)
                if answer is None:
                    answer = answers[output.id] = Answer([], tokenizer)
                answer.feed(output)
    print(time.process_time() - begin)


if __name__ == "__main__":
    main(sys.argv[1:])
