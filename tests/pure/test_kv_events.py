"""Events about KV blocks, without a socket: what readers are told is what the prefix cache finds, at any moment."""

from __future__ import annotations

import hashlib
import itertools
import json
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.inputs import PlacedRows, PromptRows
from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.block_journal import (
    AllGone,
    BlockChange,
    BlockContent,
    BlockGone,
    BlockJournal,
    without_passing,
)
from homenode.engine.kv.prefix import HashChain
from homenode.engine.kv_events.events import (
    IN_KV_MEMORY,
    ON_DISK,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    encode_batch,
    encode_event,
    public_hash,
)
from homenode.engine.kv_events.link import KvEventsLink
from homenode.engine.kv_events.told_events import EventForm, ToldEvents
from homenode.engine.kv_events_config import (
    KvEventsConfig,
    KvEventsSettings,
    endpoint_of_rank,
    endpoint_problem,
    events_problem,
    is_bound,
    is_open_to_others,
    read_events_config,
)
from homenode.errors import UserError
from tests.pure.test_schedule_properties import make_bench, move

SIZE = 2


class Reader:
    """What somebody knows who hears all events, checked as a reader that keeps a tree would."""

    def __init__(self) -> None:
        self.held: dict[tuple[str | None, int | None, int], tuple[int | None, tuple[int, ...]]] = {}
        self.cleared = 0

    def hear(self, events: list[KvEvent]) -> None:
        for event in events:
            match msgspec.msgpack.decode(encode_event(event), type=BlockStored | BlockRemoved | AllBlocksCleared):
                case AllBlocksCleared():
                    self.held, self.cleared = {}, self.cleared + 1
                case BlockRemoved(hashes, medium, group):
                    for each in hashes:
                        del self.held[medium, group, each]
                case BlockStored() as stored:
                    self._store(stored)

    def _store(self, stored: BlockStored) -> None:
        """A state needs no state before it: there is one at some blocks only."""
        assert len(stored.token_ids) == stored.block_size * len(stored.block_hashes)
        above, place = stored.parent_block_hash, (stored.medium, stored.group_idx)
        assert above is None or stored.group_idx == 1 or (*place, above) in self.held
        for index, each in enumerate(stored.block_hashes):
            assert (*place, each) not in self.held
            tokens = stored.token_ids[index * stored.block_size : (index + 1) * stored.block_size]
            self.held[*place, each] = (above, tuple(tokens))
            above = each

    def finds(self, tokens: list[int], medium: str = IN_KV_MEMORY) -> int:
        """Blocks of the longest beginning that it knows of."""
        below = {value: key[2] for key, value in self.held.items() if key[:2] == (medium, 0)}
        above, count = None, 0
        while (found := below.get((above, tuple(tokens[count * SIZE : (count + 1) * SIZE])))) is not None:
            if len(tokens) < (count + 1) * SIZE:
                break
            above, count = found, count + 1
        return count


class Told:
    """A publisher that a reader hears at once."""

    def __init__(self, form: EventForm) -> None:
        self.told, self.reader = ToldEvents(form), Reader()
        self.described: dict[str, object] = {}
        self.ended = False

    def start(self) -> None:
        """Nothing is to be begun."""

    def give(self, changes: list[BlockChange], states: frozenset[bytes] | None = None) -> None:
        self.reader.hear(self.told.take(changes, states))

    def close(self, seconds: float) -> None:
        """Nothing is to be ended."""


class Engine:
    """A prefix cache with a reader."""

    def __init__(self, blocks: int, group_blocks: int = 1) -> None:
        self.allocator = KvAllocator(
            blocks, SIZE, enable_prefix_caching=True, hash_seed=b"seed", group_blocks=group_blocks
        )
        self.publisher = Told(EventForm(SIZE))
        self.link = KvEventsLink(self.publisher, self.allocator)
        self.running: list[tuple[HashChain, list[int], list[int]]] = []

    @property
    def reader(self) -> Reader:
        return self.publisher.reader

    def begin(self, tokens: list[int], salt: str = "") -> None:
        """A sequence comes, finds what is there, and computes the rest, as far as there is room."""
        pool, cache, chain = self.allocator.pool, self.allocator.cache, self.allocator.cache.chain(salt)
        hits = cache.lookup(chain, tokens)
        rest = -(-len(tokens) // SIZE) - len(hits)
        if rest > pool.num_free - pool.num_unused(hits):
            return
        pool.acquire(hits)
        blocks = [*hits, *pool.allocate(rest)]
        cache.publish(chain, tokens, blocks, len(hits), len(tokens))
        self.running.append((chain, tokens, blocks))

    def end(self, number: int) -> None:
        self.allocator.pool.release(self.running.pop(number % len(self.running))[2])


WORK = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.lists(st.integers(0, 1), min_size=1, max_size=9)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("reset"), st.none()),
        st.tuples(st.just("told"), st.none()),
    ),
    max_size=30,
)


@settings(max_examples=20, deadline=None)
@given(WORK, st.sampled_from([1, 2]))
def test_a_reader_finds_what_the_cache_finds(work: list[tuple[str, object]], group_blocks: int) -> None:
    engine = Engine(12, group_blocks)
    asked: list[list[int]] = []
    for what, value in work:
        if what == "begin" and isinstance(value, list):
            engine.begin(value)
            asked.append(value)
        elif what == "end" and isinstance(value, int) and engine.running:
            engine.end(value)
        elif what == "reset":
            engine.allocator.pool.forget_all()
        engine.link.pass_on()
        pool, cache = engine.allocator.pool, engine.allocator.cache
        for tokens in asked:
            known = pool.find(cache.chain("").of(tokens, len(tokens) // SIZE))
            assert engine.reader.finds(tokens) == len(known)
    late = Reader()
    late.hear(list(engine.publisher.told.snapshot()))
    assert late.held == engine.reader.held and late.cleared == 1


def test_a_salt_is_told_with_the_first_block_only() -> None:
    engine, events = Engine(8), list[KvEvent]()
    engine.begin([1, 2, 3, 4], "pepper")
    engine.link.pass_on()
    events = list(engine.publisher.told.snapshot())
    assert isinstance(stored := events[1], BlockStored) and stored.extra_keys == [("pepper",), None]
    assert (stored.parent_block_hash, stored.medium, stored.group_idx) == (None, "GPU", 0)


def test_rows_are_told_by_their_digests() -> None:
    """However they are placed: each block has the digests of the rows in it, behind its salt."""
    digests = [hashlib.sha256(bytes([number])).digest() for number in range(3)]
    rows = [PlacedRows(1, PromptRows(bytes(3 * 4), 1, b"".join(digests)))]  # at positions 1, 2, 3 of 6
    chain, tokens = HashChain(b"seed", SIZE, "mine", rows), [7, -1, -1, -1, 8, 9]
    journal, hashes = BlockJournal(SIZE), chain.of(tokens, 3)
    for digest in hashes:
        journal.note_published(digest)
    journal.describe(hashes, tokens, chain.salt, chain.row_digests)
    (event,) = ToldEvents(EventForm(SIZE)).take(journal.take())
    assert isinstance(event, BlockStored)
    first, second, third = (digest.hex() for digest in digests)
    assert event.extra_keys == [("mine", first), (second, third), None]


def test_what_is_built_again_is_what_is_held() -> None:
    """After changes of which any part was taken, and whatever readers had been told."""
    changes: list[BlockChange] = [
        BlockGone(block(2, 1).digest),
        block(3, 1),
        block(4, 3),
        BlockGone(block(4, 3).digest),
    ]
    for taken in range(len(changes) + 1):
        told, reader = ToldEvents(EventForm(SIZE)), Reader()
        told.take([block(1), block(2, 1)])
        told.take_stores({ON_DISK: {block(1).digest: True, block(4, 3).digest: True}})
        told.take(changes[:taken])
        reader.hear(list(told.built_again(changes, None, {ON_DISK: {block(4, 3).digest: False}}).snapshot()))
        assert reader.finds([1, 1, 3, 3]) == 2 and reader.finds([1, 1, 2, 2]) == 1
        assert reader.finds([1, 1], ON_DISK) == 1 and len(reader.held) == 3


def test_without_its_publisher_there_is_no_journal() -> None:
    engine = Engine(8)
    engine.publisher.ended = True
    engine.begin([1, 1])
    engine.link.pass_on()
    assert engine.allocator.pool.journal is None
    engine.begin([2, 2])
    engine.end(0)
    engine.link.pass_on()
    assert not engine.reader.held


def test_what_a_store_brought_ahead_is_told_when_its_request_comes() -> None:
    """Such blocks are known by their identities alone until then."""
    engine = Engine(8)
    pool, chain = engine.allocator.pool, engine.allocator.cache.chain("")
    tokens = [1, 2, 3, 4, 5]
    blocks = pool.allocate(2)
    for block, digest in zip(blocks, chain.of(tokens, 2), strict=True):
        pool.publish(block, digest)
    engine.link.pass_on()
    assert engine.reader.finds(tokens) == 0
    engine.allocator.cache.describe(chain, tokens, 2)
    engine.link.pass_on()
    assert engine.reader.finds(tokens) == 2
    pool.release(blocks)
    pool.forget_all()
    engine.link.pass_on()
    assert not engine.reader.held


def block(number: int, parent: int | None = None) -> BlockContent:
    return BlockContent(bytes([number]) * 16, None if parent is None else bytes([parent]) * 16, (number, number))


def test_a_block_is_told_only_with_all_before_it() -> None:
    told, reader = ToldEvents(EventForm(SIZE)), Reader()
    reader.hear(told.take([block(2, 1), block(3, 2)]))
    assert not reader.held
    reader.hear(told.take([block(1)]))
    assert len(reader.held) == 3
    reader.hear(told.take([BlockGone(block(2, 1).digest)]))
    assert len(reader.held) == 1
    reader.hear(told.take([block(2, 1)]))
    assert len(reader.held) == 3


def test_states_are_a_group_of_their_own() -> None:
    told, reader = ToldEvents(EventForm(SIZE, states=True)), Reader()
    first, second = block(1), block(2, 1)
    reader.hear(told.take([first, second], frozenset({second.digest})))
    assert sorted(key[1] for key in reader.held if key[1] is not None) == [0, 0, 1]
    stored = next(each for each in told.snapshot() if isinstance(each, BlockStored) and each.group_idx == 1)
    assert stored.kv_cache_spec_kind == "mamba" and stored.block_size == SIZE
    reader.hear(told.take([], frozenset()))
    assert {key[1] for key in reader.held} == {0}


def test_blocks_on_disk_outlive_those_in_memory() -> None:
    told, reader = ToldEvents(EventForm(SIZE)), Reader()
    first, second = block(1), block(2, 1)
    reader.hear(told.take([first, second]))
    on_disk = {ON_DISK: dict.fromkeys((first.digest, second.digest, b"of an earlier process"), True)}
    reader.hear(told.take([BlockGone(second.digest)]))  # before anybody has looked at the disk
    reader.hear(told.take_stores(on_disk))
    assert reader.finds([1, 1, 2, 2]) == 1 and reader.finds([1, 1, 2, 2], ON_DISK) == 2
    reader.hear(told.take([AllGone()]))
    assert reader.finds([1, 1]) == 0 and reader.finds([1, 1, 2, 2], ON_DISK) == 2
    reader.hear(told.take_stores({ON_DISK: {second.digest: False}}))
    assert reader.finds([1, 1, 2, 2], ON_DISK) == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["memory", "stored", "gone", "all gone", "forget"]), st.integers(1, 4))))
def test_what_lies_on_disk_is_told_once_it_is_known_what_it_is_of(steps: list[tuple[str, int]]) -> None:
    """Whichever comes first: what a block is of, or that it lies there."""
    chain = [block(number, number - 1 or None) for number in range(1, 5)]
    told, reader, known, on_disk = ToldEvents(EventForm(SIZE)), Reader(), set[bytes](), set[bytes]()
    for what, number in steps:
        each = chain[number - 1]
        match what:
            case "memory":
                known.add(each.digest)
                reader.hear(told.take([each]))
            case "gone" | "stored":
                there = what == "stored"
                (on_disk.add if there else on_disk.discard)(each.digest)
                reader.hear(told.take_stores({ON_DISK: {each.digest: there}}))
            case "forget":
                reader.hear(told.take([BlockGone(each.digest)]))
            case _:
                reader.hear(told.take([AllGone()]))
        found = itertools.takewhile(lambda block: block.digest in known & on_disk, chain)
        assert reader.finds([token for block in chain for token in block.tokens], ON_DISK) == len(list(found))
    reader.hear(told.forget_stores())
    for each in chain:  # also of what becomes known only now
        reader.hear(told.take([each]))
    assert reader.finds([token for block in chain for token in block.tokens], ON_DISK) == 0


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=25))
def test_what_is_left_out_changes_nothing(steps: list[int]) -> None:
    """Changes that wait are bounded by leaving out what passes; a reader ends with the same."""
    there: set[int] = set()
    changes: list[BlockChange] = []
    for number in steps:
        if number == 5:
            changes.append(AllGone())
            there.clear()
        elif number in there:
            changes.append(BlockGone(bytes([number]) * 16))
            there.remove(number)
        else:
            changes.append(block(number, number - 1 if number else None))
            there.add(number)
    readers = []
    for each in (changes, without_passing(changes)):
        told, reader = ToldEvents(EventForm(SIZE)), Reader()
        reader.hear(told.take(each))
        readers.append(reader)
    assert readers[0].held == readers[1].held
    assert len(without_passing(changes)) <= len(there) + 1


def test_a_batch_is_an_array_of_maps_with_their_kind() -> None:
    event = encode_event(BlockRemoved([1], "GPU", 0))
    decoded = msgspec.msgpack.decode(encode_batch(1.5, [event, encode_event(AllBlocksCleared())], 3))
    assert decoded == [
        1.5,
        [{"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "group_idx": 0}, {"type": "AllBlocksCleared"}],
        3,
    ]


WRONG = [
    ({"publisher": "carrier-pigeon"}, "publisher"),
    ({"endpoint": "udp//nowhere"}, "endpoint"),
    ({"endpoint": "tcp://*:0"}, "endpoint"),
    ({"endpoint": "tcp://*:99999"}, "endpoint"),
    ({"replay_endpoint": "tcp://router.example:5558"}, "replay_endpoint"),
    ({"enable_kv_cache_evnets": True}, "did you mean `enable_kv_cache_events`|enable_kv_cache_evnets"),
    ({"buffer_steps": -1}, "buffer_steps"),
    ({"hwm": "many"}, "hwm"),
]


@pytest.mark.parametrize(("config", "named"), WRONG)
def test_a_wrong_config_is_refused_by_the_name_of_its_key(config: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        read_events_config(json.dumps(config))


@pytest.mark.parametrize("text", ["", "[]", "{", '"zmq"', "\ud800"])
def test_a_config_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--kv-events-config"):
        read_events_config(text)


ENDPOINTS = [  # bound, open to other hosts, that of the third engine
    ("tcp://127.0.0.1:5557", True, False, "tcp://127.0.0.1:5559"),
    ("tcp://localhost:5557", True, False, "tcp://localhost:5559"),
    ("tcp://[::1]:5557", True, False, "tcp://[::1]:5559"),
    ("tcp://*:5557", True, True, "tcp://*:5559"),
    ("tcp://0.0.0.0:5557", True, True, "tcp://0.0.0.0:5559"),
    ("tcp://[::]:5557", True, True, "tcp://[::]:5559"),
    ("tcp://router.example:5557", False, False, "tcp://router.example:5559"),
    ("ipc:///run/events", True, False, "ipc:///run/events_dp2"),
]


@pytest.mark.parametrize(("endpoint", "bound", "open_", "third"), ENDPOINTS)
def test_endpoints(endpoint: str, bound: bool, open_: bool, third: str) -> None:
    assert (endpoint_problem(endpoint, 3), is_bound(endpoint)) == ("", bound)
    assert (is_open_to_others(endpoint), endpoint_of_rank(endpoint, 2)) == (open_, third)


def test_each_engine_has_a_port() -> None:
    config = KvEventsConfig('{"enable_kv_cache_events": true, "endpoint": "tcp://*:65535"}')
    assert events_problem(config, 1, lambda module: True) is None
    problem = events_problem(config, 2, lambda module: True)
    assert problem is not None and "65535" in problem.message


def test_without_its_package_it_is_refused_with_what_to_install() -> None:
    config = KvEventsConfig('{"enable_kv_cache_events": true}')
    problem = events_problem(config, 1, lambda module: False)
    assert problem is not None and "pyzmq" in problem.message and "install" in problem.message
    assert events_problem(KvEventsConfig(), 1, lambda module: False) is None


def test_the_default_is_this_host_alone() -> None:
    settings = KvEventsSettings()
    assert not settings.on and not is_open_to_others(settings.endpoint) and settings.replay_endpoint is None


class HeardBench:
    """A scheduler in a random life, whose prefix cache somebody hears of."""

    def __init__(self, rng: random.Random, states: bool) -> None:
        self.bench = make_bench(rng, lookahead=1, faults=True, states=states)
        self.allocator = self.bench.scheduler.allocator
        self.publisher = Told(EventForm(self.allocator.block_size, states=states))
        self.link = KvEventsLink(self.publisher, self.allocator)

    def check(self) -> None:
        """The reader knows of all blocks that a sequence would find, and of no others."""
        self.link.pass_on()
        pool, held = self.allocator.pool, self.publisher.reader.held
        told = {key[2] for key in held if key[1] == 0}
        assert told <= {public_hash(digest) for digest in pool.digests}
        for sequence in self.bench.running():
            full = len(sequence.tokens) // self.allocator.block_size
            digests = sequence.chain.of(sequence.tokens, full)
            found = len(pool.find(digests))
            assert {public_hash(digest) for digest in digests[:found]} <= told
            assert found == full or public_hash(digests[found]) not in told
        if self.allocator.states is not None:
            there = {public_hash(digest) for digest in self.allocator.states.snapshots}
            assert {key[2] for key in held if key[1] == 1} == there & told


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_in_any_life_of_a_scheduler_a_reader_knows_what_is_found(seed: int, states: bool) -> None:
    rng = random.Random(seed)
    heard = HeardBench(rng, states)
    for _ in range(150):
        move(heard.bench, rng, arrivals=0.15)
        heard.check()
    late = Reader()
    late.hear(list(heard.publisher.told.snapshot()))
    assert late.held == heard.publisher.reader.held
