"""What the prefix cache finds, for whom, and what it must not."""

from __future__ import annotations

import json

from homenode.engine.kv.blocks import BlockPool
from homenode.engine.kv.prefix import HashChain, PrefixCache
from homenode.engine.request import AdapterChoice, Request
from homenode.sampling import SamplingParams
from tests.paths import DATA, needs_data


def _filled(tokens: list[int], salt: str = "", size: int = 4) -> tuple[BlockPool, PrefixCache, list[int]]:
    pool = BlockPool(64)
    cache = PrefixCache(pool, size, seed=b"k")
    blocks = pool.allocate(-(-len(tokens) // size))
    cache.publish(cache.chain(salt), tokens, blocks, 0, len(tokens))
    return pool, cache, blocks


def test_the_longest_known_beginning_is_found() -> None:
    tokens = list(range(19))
    _, cache, blocks = _filled(tokens)
    assert cache.lookup(cache.chain(""), tokens) == blocks[:4]
    assert cache.lookup(cache.chain(""), [*tokens[:11], 99, *tokens[12:]]) == blocks[:2]
    assert cache.lookup(cache.chain(""), [99, *tokens[1:]]) == []


def test_the_last_token_is_never_found() -> None:
    tokens = list(range(16))
    _, cache, blocks = _filled(tokens)
    assert cache.lookup(cache.chain(""), tokens) == blocks[:3]
    assert cache.lookup(cache.chain(""), [*tokens, 5]) == blocks[:4]
    assert cache.lookup(cache.chain(""), tokens[:4]) == []
    assert cache.lookup(cache.chain(""), tokens[:1]) == []


def test_no_salt_stands_for_another_one_with_an_adapter() -> None:
    def scope(salt: str, digest: str = "") -> str:
        adapter = AdapterChoice(0, digest) if digest else None
        return Request(id=1, prompt_ids=[1], params=SamplingParams(), cache_salt=salt, adapter=adapter).kv_scope

    assert scope("mine") == "mine"  # KV that was kept on disk before there were adapters
    asked = [
        ("", ""),
        ("", "d"),
        ("d", ""),
        ("\0/d", ""),
        ("\0", ""),
        ("\0", "d"),
        ("\0\0/d", ""),
        ("/d", ""),
        ("", "e"),
    ]
    assert len({scope(*each) for each in asked}) == len(asked)


def test_salts_keep_prefixes_apart() -> None:
    tokens = list(range(16))
    _, cache, blocks = _filled(tokens, salt="mine")
    assert cache.lookup(cache.chain(""), tokens) == []
    assert cache.lookup(cache.chain("yours"), tokens) == []
    assert cache.lookup(cache.chain("mine"), tokens) == blocks[:3]


def test_equal_tokens_at_another_place_are_not_the_same_block() -> None:
    _, cache, blocks = _filled([1, 2, 3, 4, 1, 2, 3, 4, 9])
    assert cache.lookup(cache.chain(""), [1, 2, 3, 4, 5]) == blocks[:1]
    assert HashChain(b"k", 4, "").of([1, 2, 3, 4] * 3, 3) != [HashChain(b"k", 4, "").of([1, 2, 3, 4], 1)[0]] * 3


def test_hashes_need_the_seed_and_every_process_draws_its_own() -> None:
    tokens = list(range(8))
    assert HashChain(b"a", 4, "").of(tokens, 2) == HashChain(b"a", 4, "").of(tokens, 2)
    assert HashChain(b"a", 4, "").of(tokens, 2) != HashChain(b"b", 4, "").of(tokens, 2)
    one, other = PrefixCache(BlockPool(1), 4), PrefixCache(BlockPool(1), 4)
    assert one.chain("").of(tokens, 2) != other.chain("").of(tokens, 2)


def test_a_chain_grows_with_its_sequence() -> None:
    tokens = list(range(30))
    chain = HashChain(b"a", 4, "s")
    assert chain.of(tokens[:9], 2) + chain.of(tokens, 7)[2:] == HashChain(b"a", 4, "s").of(tokens, 7)


def test_only_full_and_computed_blocks_are_published() -> None:
    pool, tokens = BlockPool(8), list(range(16))
    cache = PrefixCache(pool, 4, seed=b"k")
    chain, blocks = cache.chain(""), pool.allocate(4)
    assert cache.publish(chain, tokens, blocks, 0, 7) == 1
    assert cache.lookup(cache.chain(""), tokens) == blocks[:1]
    assert cache.publish(chain, tokens, blocks, 1, 16) == 4
    assert cache.lookup(cache.chain(""), [*tokens, 0]) == blocks


def test_positions_beyond_the_known_tokens_are_not_published() -> None:
    """One step ahead, a worker may have computed a token that was dropped meanwhile."""
    pool = BlockPool(8)
    cache = PrefixCache(pool, 4, seed=b"k")
    assert cache.publish(cache.chain(""), list(range(7)), pool.allocate(2), 0, 8) == 1


def test_switched_off_it_finds_and_publishes_nothing() -> None:
    pool, tokens = BlockPool(8), list(range(16))
    cache = PrefixCache(pool, 4, enabled=False)
    assert cache.publish(cache.chain(""), tokens, pool.allocate(4), 0, 16) == 0
    assert pool.num_cached == 0 and cache.lookup(cache.chain(""), tokens) == []


@needs_data
def test_an_unlimited_cache_meets_the_known_hit_rate_of_a_real_trace() -> None:
    """The trace names each 512-token block by its content, so a block of one token stands for it. Stated for this
    trace: 36.6 %.
    """
    lines = (DATA / "traces" / "mooncake" / "conversation_trace.jsonl").read_text().splitlines()
    prompts: list[list[int]] = [json.loads(line)["hash_ids"] for line in lines]
    total = sum(map(len, prompts))
    pool = BlockPool(total)
    cache = PrefixCache(pool, 1, seed=b"k")
    found = 0
    for prompt in prompts:
        chain = cache.chain("")
        hits = cache.lookup(chain, [*prompt, 0])  # the last token is never looked up
        pool.acquire(hits)
        blocks = hits + pool.allocate(len(prompt) - len(hits))
        cache.publish(chain, prompt, blocks, len(hits), len(prompt))
        pool.release(blocks)
        found += len(hits)
    assert round(found / total, 3) == 0.366


def test_identities_are_hashes_and_for_the_rest_one_of_another_kind() -> None:
    tokens = list(range(20))
    chain = HashChain(b"k", 4, "")
    digests = chain.of(tokens, 5)
    assert chain.identities(tokens, 16) == digests[:4]
    known = chain.identities(tokens, 18)
    assert known[:4] == digests[:4] and len(known) == 5 and known[4] != digests[4]
    assert chain.identities(tokens, 3) != chain.identities(tokens, 2)
    assert chain.identities(tokens, 0) == []
    # A part never passes for a whole, nor one part for another: everything before it counts, how long it is, the salt
    # and the seed.
    parts = {chain.identities(tokens, n)[-1] for n in range(1, 20)}
    assert len(parts) == 19
    others = [HashChain(b"k", 4, "salt"), HashChain(b"other", 4, ""), HashChain(b"k", 8, "")]
    assert not any(other.identities(tokens, 18)[-1] in parts for other in others)
    assert HashChain(b"k", 4, "").identities([9, *tokens[1:]], 18)[-1] not in parts


def test_chains_of_another_block_size_know_the_same_tokens_by_other_hashes() -> None:
    tokens = list(range(32))
    _, cache, _ = _filled(tokens)
    assert cache.chain("", 8).identities(tokens, 24) == HashChain(b"k", 8, "").of(tokens, 3)
    assert not set(cache.chain("", 8).of(tokens, 4)) & set(cache.chain("").of(tokens, 8))
