"""The error vocabulary: whose fault it is, and what to do about it::

    HomenodeError
     +- UserError       the request, the flag or the file is wrong; the user can mend it
     |   +- CheckpointError   a model file is damaged, hostile or not what it says
     |   +- UnsupportedError  well formed, but not something homenode can do (yet)
     |   +- CapacityError     it can never fit; the numbers are in the message
     |   |   +- ContextLengthError  a prompt that is longer than the context, or than memory holds of it
     |   +- PlacementError    no plan can be made, or none can be trusted; carries a code, what was seen, what was
     |                        wanted and the remedy
     +- HostError       the machine refused (a system call, a missing tool, too little memory)
     +- PeerError       another process or machine went away, or broke the protocol
     |   +- OverloadedError   full for now: try again after `retry_after_s`
     |   |   +- KvRefusedError   KV could not be handed over now; another sender, or the receiver itself, may compute it
     |   +- WorkerLostError   an engine, or a worker of one, went away with a request, and it could not be finished
     |                        elsewhere or again
     +- InternalError   a bug of ours: please report it
         +- NotANumberError   the model computed a NaN: a bug of ours, unless its file holds one

Every message says what failed, where, what was seen, what was wanted and what to do; the facts are also kept in `facts`
for programs.
"""

from __future__ import annotations

# Public: docs/compatibility.md.
__all__ = [
    "CapacityError",
    "CheckpointError",
    "ContextLengthError",
    "HomenodeError",
    "HostError",
    "InternalError",
    "KvRefusedError",
    "NotANumberError",
    "OverloadedError",
    "PeerError",
    "PlacementError",
    "UnsupportedError",
    "UserError",
    "WorkerLostError",
]


class HomenodeError(Exception):
    """Root of all errors homenode raises on purpose. `facts` holds the values named in the message."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class UserError(HomenodeError):
    """Something the user gave is wrong. The command line ends with exit code 2, the server answers with HTTP 4xx.

    `param` names the flag or request field at fault, if there is one.
    """

    def __init__(self, message: str, *, param: str | None = None, **facts: object) -> None:
        super().__init__(message, **facts)
        self.param = param


class CheckpointError(UserError):
    """A model file is damaged, truncated, hostile, or lacks something it promises."""


class UnsupportedError(UserError):
    """A valid input that homenode does not handle."""


class CapacityError(UserError):
    """A request or a setting that can never fit the memory or the limits there are."""


class ContextLengthError(CapacityError):
    """A prompt that is longer than the context of the model, or than this engine has room for. The message has the
    words by which programs know to shorten a conversation: "maximum context length is N tokens".
    """


class PlacementError(UserError):
    """Nobody can be placed: the facts of the host, the allowance or the demand forbid it.

    `code` is a word for programs (`insufficient_cpus`, `npu_map_unparseable`, ...; docs/placement/failures.md lists
    them all), `seen` and `wanted` are the two sides of the trouble and `remedy` says what to do. The message holds all
    of it in one sentence or two.
    """

    def __init__(
        self, code: str, message: str, *, seen: str, wanted: str, remedy: str, param: str | None = None
    ) -> None:
        super().__init__(
            f"{message} (seen: {seen}; wanted: {wanted}). {remedy}", param=param, code=code, seen=seen, wanted=wanted
        )
        self.code = code
        self.summary = message
        self.seen = seen
        self.wanted = wanted
        self.remedy = remedy

    def to_dict(self) -> dict[str, str]:
        """The JSON form: `{"code", "message", "seen", "wanted", "remedy"}`."""
        return {
            "code": self.code,
            "message": self.summary,
            "seen": self.seen,
            "wanted": self.wanted,
            "remedy": self.remedy,
        }


class HostError(HomenodeError):
    """The machine refused: a failed system call, too little memory, a missing device."""


class PeerError(HomenodeError):
    """A process or machine we depend on went away or broke the protocol."""


class OverloadedError(PeerError):
    """Full or draining: the same request may succeed after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float, **facts: object) -> None:
        super().__init__(message, **facts)
        self.retry_after_s = retry_after_s


class KvRefusedError(OverloadedError):
    """This engine cannot hand KV over now: no room at the receiver, no receiver, or too much on its way already."""


class WorkerLostError(PeerError):
    """One of several engines went away with this request and no other could take it over, or an engine's workers were
    lost under it again and again."""


class InternalError(HomenodeError):
    """A bug in homenode."""


class NotANumberError(InternalError):
    """The model computed a NaN for a request. That is a bug in homenode unless its file holds values that are no
    numbers.
    """
