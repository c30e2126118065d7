"""Which part of the keys attention reads over the links between NUMA nodes, where blocks lie on the nodes in turn.

    python -m benchmarks.off_node_keys [--steps 2000] [--memory 65536] [--block-sizes 16,32,64,256]
        [--fills 0.6,0.8,1.0] [--seeds 3] [--chunk-blocks 0]

No model is needed: the real block pool hands blocks to conversations that come, grow all at once by a token a step, and
end, and a chunk of 256 positions counts as read by the node of its first block. Half of the prompts begin with one of
eight texts of 200 to 2000 tokens, a quarter goes on with a conversation that has ended, answers have 20 to 1200 tokens.
`--fills`: which part of the memory belongs to running sequences at most; at 1.0 sequences are preempted. Nodes have as
many blocks in turn as a chunk of positions takes, the least there is. `before` is the pool that knows nothing of
nodes.

Printed for each: keys read over the links with 2 and with 4 nodes, keys at the fullest of 4 nodes in relation to the
mean, and the prompt tokens found in the prefix cache.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import dataclass, field

from homenode.engine.kv.blocks import BlockPool
from homenode.engine.kv.chunks import ChunkTable

CHUNK = 256  # positions
_LOOK_EVERY = 40  # steps
_TEXTS = 8


@dataclass
class Conversation:
    """Its first `common` tokens are text number `text`; `length` tokens in all so far, and `last` when it ends."""

    number: int
    text: int
    common: int
    length: int
    last: int
    blocks: list[int] = field(default_factory=list)

    def digest(self, index: int, block_size: int) -> bytes:
        """Of the content up to the end of block `index`."""
        shared = (index + 1) * block_size <= self.common
        return f"{'text' if shared else 'own'} {self.text if shared else self.number} {index}".encode()


@dataclass
class Share:
    """What was counted over all looks."""

    keys: int = 0
    off_node: dict[int, int] = field(default_factory=lambda: {2: 0, 4: 0})
    fullest: float = 0.0
    looks: int = 0
    prompt: int = 0
    found: int = 0


class Traffic:
    """Conversations in a pool of `memory` tokens, of which `fill` belongs to those that run."""

    def __init__(
        self, pool: BlockPool, block_size: int, fill: float, share: Share, *, caching: bool, seed: int
    ) -> None:
        """`share`: where it is counted."""
        self._pool, self._size, self._fill, self._caching = pool, block_size, fill, caching
        self._random = random.Random(seed)
        self._texts = [self._random.randrange(200, 2001) for _ in range(_TEXTS)]
        self._running: list[Conversation] = []
        self._ended: list[Conversation] = []
        self._next: Conversation | None = None
        self._number = 0
        self.share = share

    def run(self, steps: int) -> None:
        """Steps, of which the second half is looked at."""
        for step in range(steps):
            self._admit()
            for conversation in list(self._running):
                self._grow(conversation)
            if step >= steps // 2 and not step % _LOOK_EVERY:
                self._look()

    def _make(self) -> Conversation:
        choose, self._number = self._random, self._number + 1
        answer = min(1200, max(20, int(choose.lognormvariate(math.log(250), 0.8))))
        if self._ended and choose.random() < 0.25:
            old = self._ended.pop(choose.randrange(max(0, len(self._ended) - 40), len(self._ended)))
            length = old.length + choose.randrange(10, 200)
            if length < 8000:
                return Conversation(old.number, old.text, old.common, length, length + answer)
        own = min(6000, max(20, int(choose.lognormvariate(math.log(400), 1.0))))
        text = choose.randrange(_TEXTS)
        common = self._texts[text] if choose.random() < 0.5 else 0
        return Conversation(self._number, text, common, common + own, common + own + answer)

    def _admit(self) -> None:
        while True:
            new = self._next = self._next or self._make()
            full = (new.length - 1) // self._size if self._caching else 0
            hits = self._pool.find(new.digest(index, self._size) for index in range(full))
            needed = -(-(new.length + 1) // self._size) - len(hits)
            spare = len(self._running) if self._fill >= 1 else 0
            if needed + spare > self._pool.num_free - self._pool.num_unused(hits):
                return
            if self._pool.num_owned + needed > self._fill * self._pool.num_blocks:
                return
            self._pool.acquire(hits)
            new.blocks = hits + self._take(needed, hits[-1] if hits else -1, len(hits))
            self.share.prompt += new.length
            self.share.found += len(hits) * self._size
            self._publish(new, len(hits))
            self._running.append(new)
            self._next = None

    def _take(self, count: int, after: int, index: int) -> list[int]:
        blocks = self._pool.allocate(count, after, index)
        assert self._pool.secure(blocks)
        return blocks

    def _publish(self, conversation: Conversation, first: int) -> None:
        if self._caching:
            for index in range(first, conversation.length // self._size):
                self._pool.publish(conversation.blocks[index], conversation.digest(index, self._size))

    def _grow(self, conversation: Conversation) -> None:
        if conversation not in self._running:
            return  # preempted in this step
        conversation.length += 1
        if conversation.length >= conversation.last:
            self._end(conversation)
            self._ended.append(conversation)
            return
        if conversation.length % self._size:
            return
        self._publish(conversation, conversation.length // self._size - 1)
        while not self._pool.num_free:
            newest = self._running[-1]
            self._end(newest)
            self._next = newest
            if newest is conversation:
                return
        conversation.blocks += self._take(1, conversation.blocks[-1], len(conversation.blocks))

    def _end(self, conversation: Conversation) -> None:
        self._running.remove(conversation)
        self._pool.release(conversation.blocks)
        conversation.blocks = []

    def _look(self) -> None:
        share, group = self.share, max(1, CHUNK // self._size)
        at = [0] * 4
        for conversation in self._running:
            for index, block in enumerate(conversation.blocks):
                keys = min(self._size, conversation.length - index * self._size)
                first = conversation.blocks[index // group * group]
                share.keys += keys
                at[block // group % 4] += keys
                for nodes in share.off_node:
                    if block // group % nodes != first // group % nodes:
                        share.off_node[nodes] += keys
        share.fullest += 4 * max(at) / max(1, sum(at))
        share.looks += 1


def measure(block_size: int, fill: float, given: argparse.Namespace, *, grouped: bool, caching: bool) -> Share:
    """Several lives of a pool, one after the other."""
    share, num_blocks = Share(), given.memory // block_size
    for seed in range(given.seeds):
        chunks = ChunkTable(num_blocks, given.chunk_blocks) if given.chunk_blocks else None
        pool = BlockPool(num_blocks, chunks, max(1, CHUNK // block_size) if grouped else 1)
        Traffic(pool, block_size, fill, share, caching=caching, seed=seed).run(given.steps)
    return share


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--memory", type=int, default=1 << 16, help="tokens")
    parser.add_argument("--seeds", type=int, default=3, help="lives of each pool")
    parser.add_argument("--block-sizes", default="16,32,64,256")
    parser.add_argument("--fills", default="0.6,0.8,1.0")
    parser.add_argument("--chunk-blocks", type=int, default=0, help="of memory that grows; 0: all is there")
    given = parser.parse_args()
    print("| block size | full | prefix cache | 2 nodes | 4 nodes | fullest of 4 | found in the cache |")
    print("|---|---|---|---|---|---|---|")
    for block_size in map(int, given.block_sizes.split(",")):
        for fill in map(float, given.fills.split(",")):
            for caching in (True, False):
                before, after = (
                    measure(block_size, fill, given, grouped=grouped, caching=caching) for grouped in (False, True)
                )
                cells = [
                    " to ".join(f"{share.off_node[nodes] / share.keys:.1%}" for share in (before, after))
                    for nodes in (2, 4)
                ]
                cells.append(" to ".join(f"{share.fullest / share.looks:.2f}" for share in (before, after)))
                cells.append(" to ".join(f"{share.found / share.prompt:.1%}" for share in (before, after)))
                print(f"| {block_size} | {fill:.0%} | {'on' if caching else 'off'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
