"""A request as the engine sees it: token ids in, sampling parameters, nothing of HTTP or text."""

from __future__ import annotations

import hashlib
from enum import IntEnum

import msgspec

from homenode.engine.inputs import PlacedRows
from homenode.sampling import SamplingParams
from homenode.transfer.scheduler_events import KvTicket


class Urgency(IntEnum):
    """The class of a request in the order of prompts, before its key and its priority: prompts of one have no part in a
    step that has prompts of a more urgent one.
    """

    USUAL = 0
    BACKGROUND = 1  # nobody waits for it: it has what others leave, in steps that a newcomer hardly notices


class AdapterChoice(msgspec.Struct, frozen=True, array_like=True):
    """The adapter of a request: what changes the weights of the model for it alone. `number`: by which the workers know
    it, counted from 0; `digest`: of all that it is made of, so that it is known wherever its KV is found again.
    """

    number: int
    digest: str


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence to continue. `id` is chosen by the client and unique for the life of the engine."""

    id: int
    prompt_ids: list[int]
    params: SamplingParams
    priority: int = 0  # lower runs first
    key: str = ""  # the name of the API key it came with: keys share the machine (`scheduler.order.fair_share`)
    cache_salt: str = ""  # requests share cached prefixes only within one salt
    arrival: float = 0.0  # time.monotonic() of the front, same clock on one host
    deadline: float | None = None  # time.monotonic() after which it is aborted
    kv: KvTicket | None = None  # its KV is handed over, to or from another engine
    second_from: int = 0  # of two texts that are read together, the first token of the second; 0: there is one text
    pools: bool = False  # wants the vector of its text, or scores; its `params.max_tokens` is 0
    speculative: bool = True  # tokens may be drafted for it
    session: str = ""  # its KV stays on disk as long as this session (`session_ticket`); empty: it is of none
    urgency: Urgency = Urgency.USUAL
    awaited: bool = True  # somebody waits for its tokens as they come, so that steps are to be short
    # Output tokens that another engine had given when it was lost: the sequence goes on after them.
    begun: list[int] = []
    name: str = ""  # by which its client and the logs of others know it
    rows: list[PlacedRows] = []  # what takes the place of embeddings in the prompt, in the order of positions
    adapter: AdapterChoice | None = None

    @property
    def kv_scope(self) -> str:
        """Return within what cached prefixes are shared, and past answers drafted from: the salt, and the adapter. No
        salt gives that of another one with an adapter: a null character in it is never followed by a slash.
        """
        salt = self.cache_salt.replace("\0", "\0\0") if "\0" in self.cache_salt else self.cache_salt
        return salt if self.adapter is None else f"{salt}\0/{self.adapter.digest}"


def session_ticket(key: str, cache_salt: str, session: str) -> str:
    """Return what a session of a key and a salt is called in `Request.session`, and where it is released. No ticket has
    a slash, and nobody finds the session of another key or salt by its name.
    """
    told = "\0".join((key, cache_salt, session)).encode("utf-8", "surrogatepass")
    return f"session/{hashlib.blake2b(told, digest_size=16).hexdigest()}"


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of a token, and (token, log-probability) pairs of others in its place: of the most likely ones,
    or of those that were asked for.
    """

    logprob: float
    top: list[tuple[int, float]] = []
