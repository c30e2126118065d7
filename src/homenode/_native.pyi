"""The compiled core (csrc/bind). ValueError for wrong arguments, OSError when the machine refuses.

Written by `make stubs`; not to be edited.
"""

import enum
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

class Level(enum.Enum):
    """Instruction set levels, the weakest first."""

    scalar = 0

    avx2 = 1

    avx2vnni = 2

    avx512 = 3

    avx512bf16 = 4

    amx = 5

    neon = 6

    dotprod = 7

    i8mm = 8

def best_level() -> Level:
    """The best level here: the last that is available and has no drawback."""

def level_built(level: Level) -> bool: ...
def level_lack(level: Level) -> str | None:
    """What keeps a level from being used here; None when nothing does."""

def level_drawback(level: Level) -> str | None:
    """What makes a level slower here than its base; None when nothing does."""

class ThreadPool:
    """Threads pinned to the CPUs given (-1: not pinned)."""

    def __init__(
        self, cpus: Sequence[int], spin_us: int, pin_caller: bool, groups: Sequence[Sequence[int]] | None = None
    ) -> None: ...
    @property
    def cpus(self) -> list[int]: ...
    @property
    def spin_us(self) -> int:
        """
        Microseconds threads watch for others: less than asked for where they share CPUs.
        """

    @property
    def lost_shares(self) -> list[float]:
        """
        For each thread the share of the CPU time it recently wanted that it did not get.
        """

    def move(self, places: Sequence[Sequence[int]]) -> None:
        """
        Moves each thread, between two runs, to the CPUs of its place; no CPUs: it stays. Its memory stays, too.
        """

    def exercise(self, runs: int, rounds: int) -> int:
        """
        Self-test: runs with many barriers; returns how often one let go too early.
        """

class NativeSharedWords:
    """Words at the beginning of a memfd that several processes write."""

    @staticmethod
    def map(fd: int, count: int) -> NativeSharedWords: ...
    def load(self, word: int) -> int: ...
    def store(self, word: int, value: int) -> None: ...
    def exchange(self, word: int, expected: int, value: int) -> int:
        """Write `value` where the word is `expected`; the result is what it was."""

class WeightMemory:
    """Packed weights that several processes keep in one memfd."""

    @staticmethod
    def map(fd: int, nbytes: int) -> WeightMemory: ...
    @property
    def range(self) -> tuple[int, int]:
        """Address and bytes."""

    def open(self, begin: int, end: int) -> None:
        """Let some of it, whole pages, be written, and nothing else."""

    def close(self) -> None:
        """Nothing of it can be written any more."""

    def clear(self, begin: int, end: int) -> None:
        """Make some of it, whole pages that are open, zeros again."""

    def enter(self, pool: ThreadPool, begin: int, end: int) -> None:
        """Enter whole pages that others have filled into this process's tables."""

    def take_huge(self, pool: ThreadPool) -> None:
        """Have what is open taken on huge pages, where the kernel gives them."""

    def prefer(self, begin: int, end: int, nodes: Sequence[int]) -> int:
        """
        Where pages nobody touched yet are to come from; the result is 0 or the kernel's errno.
        """

def has_kernel(format: int) -> bool:
    """Of a GGUF type number."""

def can_decode(format: int) -> bool:
    """Of a GGUF type number."""

def tile_tokens(level: Level) -> int:
    """
    Tokens that a tile of a product takes at a level: a step costs by whole tiles.
    """

class NativeNumaPolicy(enum.Enum):
    """Where a weight lies when its thread pool has several homes."""

    shard = 0

    mirror = 1

    interleave = 2

class Arena:
    """Memory that the weights of one thread pool share."""

    def __init__(self, pool: ThreadPool, homes: Sequence[int] = [], nodes: Sequence[int] = []) -> None:
        """
        homes: for each thread the number of its home, from 0; nodes: of each home the NUMA node to take memory from, or none at all.
        """

    def expect(self, nbytes: int) -> None:
        """
        That about so many bytes will be taken for every thread at each of its homes.
        """

    def trim(self) -> None:
        """
        Give back most of what huge pages hold behind the weights; for when the last weight was made.
        """

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """
        Address, bytes and home (-1: all of them in turn) of the chunks it has mapped.
        """

    @property
    def refused(self) -> int:
        """
        The errno with which the kernel last refused to take a chunk from its home, or 0.
        """

class Weight:
    """A packed matrix."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def format(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """With all copies."""

    @property
    def pieces(self) -> list[tuple[int, int, int]]:
        """
        For each thread the rows it multiplies, from and past the last, and where they lie as it reads them.
        """

    def write(self, fd: int, offset: int) -> int:
        """
        Write it as packed_bytes at `offset` of a file; the result is its checksum.
        """

    def unpack_row(self, row: int) -> NDArray[np.float32]:
        """One row as float32."""

class WeightFile:
    """A matrix as it is stored in an open file."""

    def __init__(self, *, fd: int, offset: int, format: int, permuted_heads: int = 0, stride: int = 0) -> None:
        """
        format: a GGUF type number. permuted_heads: of this many heads the stored rows have interleaved halves; 0: none. stride: bytes from the beginning of a row to that of the next; 0: rows follow each other.
        """

class WeightShape:
    """What a matrix is to be in memory."""

    def __init__(
        self,
        *,
        format: int,
        rows: int,
        columns: int,
        policy: NativeNumaPolicy = NativeNumaPolicy.shard,
        shared: WeightMemory | None = None,
        shared_offset: int = 0,
    ) -> None:
        """
        format: a GGUF type number. shared, shared_offset: it lies there instead of in an arena. ValueError for a matrix without elements, or of more than 2^40.
        """

def weight_from_file(pool: ThreadPool, file: WeightFile, shape: WeightShape, arena: Arena | None = None) -> Weight:
    """Read and pack."""

def weight_from_rows(
    pool: ThreadPool, rows: NDArray[np.float32], shape: WeightShape, arena: Arena | None = None
) -> Weight:
    """Pack float32 [rows, columns]."""

def attach_weight(pool: ThreadPool, shape: WeightShape) -> Weight:
    """A matrix that is in its shared memory already."""

def packed_bytes(format: int, rows: int, columns: int) -> int: ...
def head_checksum(fd: int, bytes: int) -> int:
    """Of the first bytes of a file, or of all where it ends before."""

def packing_fingerprint() -> int:
    """Changes when rows are encoded or packed in another way."""

def weights_from_packed(
    pool: ThreadPool, fd: int, weights: Sequence[tuple[int, WeightShape]], arena: Arena | None = None
) -> list[tuple[Weight, int]]:
    """
    What `Weight.write` wrote at each offset, and the checksums of what was read.
    """

class StoredTable:
    """
    A table that stays in its file; see homenode.compute.ops.Ops.stored_rows.
    """

def stored_table(fd: int, offset: int, format: int, rows: int, columns: int) -> StoredTable: ...

class Sharing(enum.Enum):
    """What other processes may do with a memfd of ours."""

    readable = 0

    writable = 1

class KvType(enum.Enum):
    """How keys and values are stored."""

    f32 = 0

    bf16 = 1

    int8 = 2

class KvShape:
    """What a block of keys and values holds."""

    def __init__(
        self, *, layers: int, kv_heads: int, head_dim: int, block_size: int, type: KvType, sides: int = 2
    ) -> None:
        """sides: 2 of keys and values, 1 of keys alone."""

    @property
    def layers(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def block_size(self) -> int:
        """Tokens."""

    @property
    def type(self) -> KvType: ...
    @property
    def sides(self) -> int: ...

class KvCache:
    """Paged keys and values."""

    @property
    def blocks(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """Address, bytes and home (-1: all of them in turn) of its regions."""

    def attach(self, memory: KvMemoryHandle, first: int | None = None) -> int: ...
    def detach(self, first: int) -> None: ...
    def home_of(self, block: int) -> int:
        """
        The home at which all heads of a block lie; -1: none, or heads have homes of their own.
        """

    @property
    def refused(self) -> int:
        """
        The errno with which the kernel last refused to take a region from its home, or 0.
        """

def kv_cache(
    pool: ThreadPool,
    shape: KvShape,
    blocks: int,
    *,
    arena: Arena | None = None,
    interleaved: bool = False,
    sharing: Sharing | None = None,
    share: tuple[int, int, int] | None = None,
    touched: bool = True,
) -> KvCache:
    """
    At the homes of `arena`, if given. share: descriptor, offset and bytes of somebody else's memfd to lie in; the descriptor is not kept. touched: whether every page of private memory is there at once.
    """

class NativeKvRegion:
    """
    Some heads of some layers: head h of block b in layer l begins at offset + (l - first_layer) * layer_stride + b * block_stride + (h - first_head) * head_stride, in bytes.
    """

    def __init__(self) -> None: ...
    @property
    def first_head(self) -> int: ...
    @first_head.setter
    def first_head(self, arg: int, /) -> None: ...
    @property
    def past_head(self) -> int: ...
    @past_head.setter
    def past_head(self, arg: int, /) -> None: ...
    @property
    def offset(self) -> int: ...
    @offset.setter
    def offset(self, arg: int, /) -> None: ...
    @property
    def layer_stride(self) -> int: ...
    @layer_stride.setter
    def layer_stride(self, arg: int, /) -> None: ...
    @property
    def block_stride(self) -> int: ...
    @block_stride.setter
    def block_stride(self, arg: int, /) -> None: ...
    @property
    def head_stride(self) -> int: ...
    @head_stride.setter
    def head_stride(self, arg: int, /) -> None: ...
    @property
    def first_layer(self) -> int: ...
    @first_layer.setter
    def first_layer(self, arg: int, /) -> None: ...
    @property
    def past_layer(self) -> int: ...
    @past_layer.setter
    def past_layer(self, arg: int, /) -> None: ...

class NativeKvLayout:
    """Where everything in a KV memory is."""

    def __init__(
        self, *, shape: KvShape, tile_bytes: int, blocks: int, nbytes: int, regions: Sequence[NativeKvRegion]
    ) -> None: ...
    @property
    def shape(self) -> KvShape: ...
    @property
    def tile_bytes(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def regions(self) -> list[NativeKvRegion]: ...

class KvMemoryHandle:
    """KV memory that can be copied from and to."""

    @staticmethod
    def of(cache: KvCache) -> KvMemoryHandle: ...
    @staticmethod
    def pool(shape: KvShape, blocks: int, sharing: Sharing, nodes: Sequence[int]) -> KvMemoryHandle: ...
    @staticmethod
    def map(fd: int, layout: NativeKvLayout, writable: bool) -> KvMemoryHandle:
        """Of another process; the descriptor is not kept."""

    @property
    def layout(self) -> NativeKvLayout: ...
    @property
    def fd(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    @property
    def views(self) -> list[NDArray[np.uint8]]:
        """The bytes of each region."""

    def parts(self, block: int, tiles: int) -> list[tuple[int, int, int]]:
        """Region, offset and bytes of the pieces of a block."""

class EpochWordsHandle:
    """
    Numbers for the parts of a memory, in a memfd that only its maker writes.
    """

    @staticmethod
    def create(count: int) -> EpochWordsHandle: ...
    @staticmethod
    def map(fd: int, count: int) -> EpochWordsHandle: ...
    @property
    def count(self) -> int: ...
    @property
    def fd(self) -> int: ...
    def read(self, word: int) -> int: ...
    def hold(self, words: Sequence[int], epochs: Sequence[int]) -> bool:
        """Whether these words are still what they were."""

    def write(self, words: Sequence[int], epochs: Sequence[int]) -> None: ...

class NativeKvPages:
    """
    Pages first .. first + count - 1 of a sequence, in the blocks of `table`.
    """

    def __init__(
        self,
        *,
        memory: KvMemoryHandle,
        table: Sequence[int],
        first: int,
        count: int,
        tokens: int,
        page_tokens: int,
        heads: tuple[int, int] | None = None,
    ) -> None:
        """
        table: the blocks of the whole sequence, of `tokens` positions; -1: one that is not there. heads: the first and one past the last; None: all.
        """

class KvTarget:
    """Where pages are copied to."""

    def __init__(self, *, memory: KvMemoryHandle, table: Sequence[int], first_head: int = 0) -> None:
        """first_head: where the first head that is copied goes."""

class KvEpochs:
    """What the epoch words of the source's blocks must be, for each page."""

    def __init__(self, *, words: EpochWordsHandle, expected: Sequence[int]) -> None: ...

def digest_kv(level: Level, pages: NativeKvPages) -> list[bytes]:
    """
    For each page 8 bytes for each head; none for a page that is not there.
    """

def copy_kv(
    level: Level, source: NativeKvPages, target: KvTarget, *, epochs: KvEpochs | None = None, threads: int = 1
) -> list[bytes] | None:
    """
    The digests of the pages; None when an epoch word was not what it must be.
    """

class NativePageReceiver:
    """
    Bytes of KV pages from a socket into their blocks; digested on the way.
    """

    @staticmethod
    def create(
        memory: KvMemoryHandle, level: Level, blocks: Sequence[int], tiles: Sequence[int]
    ) -> NativePageReceiver: ...
    def receive(self, socket: int, most: int, wait_us: int) -> int:
        """Bytes read; 0: there was nothing; -1: the stream has ended."""

    def take(self, data: bytes) -> int:
        """What was read already; how many bytes of it belong here."""

    @property
    def complete(self) -> bool: ...
    def digests(self) -> list[bytes]:
        """Of each page that is complete."""

class NativePageSender:
    """Bytes of KV pages from their blocks into a socket."""

    @staticmethod
    def create(memory: KvMemoryHandle, blocks: Sequence[int], tiles: Sequence[int]) -> NativePageSender: ...
    def send(self, socket: int, most: int) -> int:
        """Bytes the kernel took; 0: none now."""

    @property
    def done(self) -> bool: ...

class LaneReaderHandle:
    """Of records that another process of this host writes. For one thread."""

    @staticmethod
    def create() -> LaneReaderHandle: ...
    @property
    def fd(self) -> int: ...
    @property
    def wake_fd(self) -> int:
        """Can be read from when there is something, if nobody looked."""

    @property
    def waker_fd(self) -> int:
        """What it is rung by: for the writer."""

    def wake(self) -> None: ...
    def clear_wake(self) -> None:
        """Makes it quiet."""

    @property
    def has_news(self) -> bool: ...
    @property
    def wake_hinted(self) -> bool:
        """
        Whether the writer has hinted that a record will come, and none was taken since.
        """

    def clear_hint(self) -> None:
        """No record came after the last hint."""

    def take(self) -> Announcement | None:
        """
        What was announced; None: nothing more. ValueError for garbage, after which nothing more is to be taken.
        """

class LaneWriterHandle:
    """For one thread."""

    @staticmethod
    def attach(fd: int, waker_fd: int) -> LaneWriterHandle: ...
    def hint_wake(self) -> None:
        """
        Something will be announced soon: a sleeping reader is woken. From any thread.
        """

class PageRange:
    """Pages `first` and so on of a hand-over."""

    def __init__(self, *, first: int, pages: int, tokens: int) -> None:
        """
        pages: of the whole hand-over. tokens: positions from the first of these pages on.
        """

class NativePageExport:
    """
    Pages that can be announced as soon as they are computed. For one thread.
    """

    @staticmethod
    def of(
        *,
        lane: LaneWriterHandle,
        level: Level,
        memory: KvMemoryHandle,
        epoch_words: EpochWordsHandle,
        buffer: bytes,
        pull_id: int,
        range: PageRange,
        limit: int,
    ) -> NativePageExport:
        """limit: the most pages of one announcement."""

    def announce(self, after: int, first: int, pages: Sequence[int], last: bool) -> float | None:
        """
        Read pages and announce them; the seconds it took. None, and nothing was announced, when they are not there, or not what was foreseen, or do not fit.
        """

    @property
    def digests(self) -> list[bytes]:
        """Of the pages that were announced."""

class Announcement:
    """Pages that another process exports."""

    @property
    def pull_id(self) -> int: ...
    @property
    def after(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> bool: ...
    @property
    def pages(self) -> list[int]: ...
    @property
    def buffer(self) -> bytes: ...
    @property
    def packed(self) -> tuple[bytes, bytes, bytes]:
        """Digests, pages and epochs, each in one piece, little-endian."""

    @property
    def digests(self) -> list[bytes]: ...
    @property
    def count(self) -> int: ...
    def blocks(self, base: int, first: int, count: int) -> list[int]:
        """Some of the pages, counted from a block on."""

class NativeExpected:
    """Pages that can be taken as soon as they are announced."""

    @staticmethod
    def of(
        *,
        level: Level,
        own: KvMemoryHandle,
        sources: Sequence[tuple[bytes, KvMemoryHandle, EpochWordsHandle]],
        range: PageRange,
        digest_bytes: int,
        blocks: Sequence[int],
        seen: Sequence[int],
    ) -> NativeExpected:
        """
        sources: name of a buffer, its memory and epoch words. blocks: own ones, -1: read in place. seen: pages that must not come again.
        """

    def fits(self, announcement: Announcement) -> bool:
        """
        Whether it is what is expected, as far as that can be told without reading pages.
        """

    def rehearsal(self, pull_id: int) -> Announcement:
        """What looks like that, and does not fit."""

    def take(self, announcement: Announcement) -> float | None:
        """
        Reads the pages, copies those with a block of the own memory (not -1); the seconds it took. None: they are not what was announced, or expected.
        """

def watch_lanes(lanes: Sequence[LaneReaderHandle], epoll: int, seconds: float) -> bool:
    """Whether a lane has news or the descriptor events, within so long."""

class NativeRankMemory:
    """The memory of a group of ranks, in a memfd."""

    @staticmethod
    def create(ranks: int, bytes_per_rank: int) -> NativeRankMemory: ...
    @staticmethod
    def attach(fd: int) -> NativeRankMemory: ...
    @property
    def fd(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def half_floats(self) -> int: ...
    def end(self, gone: Sequence[int]) -> None: ...

class RankGroupHandle:
    """One rank of a group."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def sum(self, values: NDArray[np.float32]) -> None:
        """In place."""

    def gather(self, values: NDArray[np.float32], widths: Sequence[int]) -> NDArray[np.float32]: ...
    def leave(self) -> None: ...

def join_ranks(memory: NativeRankMemory, rank: int, timeout_s: float, spin_us: int) -> RankGroupHandle: ...

class RankSender:
    """Sends what a rank of this host writes to other hosts."""

    def close(self) -> None: ...

class RankReceiver:
    """Writes here what a rank of another host sends."""

    def close(self) -> None: ...

def send_rank(
    memory: NativeRankMemory, rank: int, hosts: Sequence[tuple[int, Sequence[int]]], timeout_s: float
) -> RankSender:
    """
    Hosts: a connected descriptor, which is taken over, and the ranks there.
    """

def receive_rank(memory: NativeRankMemory, rank: int, fd: int, timeout_s: float) -> RankReceiver: ...
def time_sums(
    group: RankGroupHandle, pool: ThreadPool, rows: int, columns: int, rounds: int
) -> tuple[list[float], list[float]]:
    """
    Seconds of sums by all threads of a thread pool, and of copies of as many values.
    """

class NativeRingMemory:
    """Rows between stages, in a memfd."""

    @staticmethod
    def create(slots: int, readers: int, rows: int, columns: int) -> NativeRingMemory: ...
    @staticmethod
    def attach(fd: int) -> NativeRingMemory: ...
    @property
    def fd(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def readers(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All of its memory."""

    def end(self) -> None: ...

class NativeRingWriter:
    def write(self, number: int, rows: NDArray[np.float32], timeout_s: float) -> None: ...
    def write_output(self, number: int, output: NativeOutput, timeout_s: float) -> None: ...
    def leave(self) -> None: ...

class NativeRingReader:
    def read(self, number: int, columns: int, timeout_s: float) -> NDArray[np.float32]: ...
    def release(self) -> None: ...
    def leave(self) -> None: ...

def ring_writer(memory: NativeRingMemory, spin_us: int) -> NativeRingWriter: ...
def ring_reader(memory: NativeRingMemory, reader: int, spin_us: int) -> NativeRingReader: ...

class Tensor:
    """A handle on float32 rows."""

    @property
    def columns(self) -> int: ...
    @property
    def is_parameter(self) -> bool: ...

def constant(values: NDArray[np.float32]) -> Tensor:
    """
    A parameter or constant input with a copy of a float32 [rows, columns] array.
    """

class StateMemory:
    """Memory of what layers keep of sequences besides keys and values."""

    @property
    def slots(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """
        Address, bytes and home (-1: all of them in turn) of its pieces of memory.
        """

    def copy_slot(self, source: int, target: int) -> None:
        """While no step runs."""

    def read_slot(self, slot: int) -> NDArray[np.float32]:
        """
        Of each layer the last inputs [taps, channels], then the matrices [heads, key_width, value_width]; float32.
        """

    def write_slot(self, slot: int, values: NDArray[np.float32]) -> None:
        """What read_slot gave. While no step runs."""

def state_memory(
    pool: ThreadPool,
    layers: Sequence[tuple[int, int, int, int, int]],
    slots: int,
    *,
    arena: Arena | None = None,
    interleaved: bool = False,
) -> StateMemory:
    """
    Zeros, at the homes of `arena`, if given. Of each layer the channels and taps of its convolution, and heads, key width and value width of its matrices.
    """

class NativeStepLimits:
    """Upper bounds of the steps of a program."""

    def __init__(
        self, *, max_tokens: int, max_sequences: int, max_sampled_rows: int, max_blocks_per_sequence: int
    ) -> None: ...

class AttentionParams:
    """How scores are made; see homenode.compute.ops.Ops.attention."""

    def __init__(
        self,
        *,
        layer: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        value_columns: int = 0,
        chosen: Tensor | None = None,
        chosen_block: int = 1,
        slopes: Tensor | None = None,
        window_kind: str = "sliding",
        causal: bool = True,
        bias: Tensor | None = None,
        buckets: Sequence[int] = [],
        bias_heads: int = 0,
        first_head: int = 0,
        spans: bool = False,
    ) -> None: ...

class ExpertWeights:
    """The matrices of an MoE layer's experts."""

    def __init__(
        self,
        *,
        gate: Sequence[Weight],
        up: Sequence[Weight],
        down: Sequence[Weight],
        ids: Sequence[int],
        gate_bias: Sequence[Tensor],
        up_bias: Sequence[Tensor],
        down_bias: Sequence[Tensor],
        scales: Tensor | None,
        activation: str,
    ) -> None:
        """
        ids: which of the experts that have logits these are, ascending; empty: all. Biases: of each, or empty.
        """

class NativeRouting:
    """How experts are chosen and weighted; see homenode.compute.ops.Routing."""

    def __init__(
        self,
        *,
        chosen: int,
        score: str,
        normalise: bool,
        epsilon: float,
        scale: float,
        groups: int,
        groups_chosen: int,
        group_score: str,
        jitter: float,
    ) -> None: ...

class NativeRecorder:
    """
    Records the operations of a forward function; see homenode.compute.ops.Ops.
    """

    def __init__(
        self,
        pool: ThreadPool,
        level: Level,
        limits: NativeStepLimits,
        *,
        fuse: bool = True,
        group: RankGroupHandle | None = None,
        arena: Arena | None = None,
    ) -> None: ...
    def clamp(self, x: Tensor, limit: float) -> Tensor: ...
    def scale(self, x: Tensor, factor: float | Tensor) -> Tensor: ...
    def scale_by_position(self, x: Tensor, growth: float, length: int, ahead: int = 0) -> Tensor: ...
    def multiply(self, x: Tensor, y: Tensor) -> Tensor: ...
    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor: ...
    def gate_runs(self, x: Tensor, gate: Tensor, softplus: bool = False) -> Tensor: ...
    def add_gated(self, x: Tensor, y: Tensor, gate: Tensor) -> Tensor: ...
    def gate_by_largest(self, x: Tensor, logits: Tensor) -> Tensor: ...
    def add_weighted(self, x: Tensor, y: Tensor, weights: Tensor | None, width: int, offset: float = 0.0) -> Tensor: ...
    def match_magnitude(self, x: Tensor, y: Tensor, floor: float) -> Tensor: ...
    def relu_above(self, x: Tensor, deviations: float) -> Tensor: ...
    def soft_cap(self, x: Tensor, cap: float) -> Tensor: ...
    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, group: int = 0) -> Tensor: ...
    def rms_norm_grouped(self, x: Tensor, weight: Tensor, groups: int, eps: float) -> Tensor: ...
    def norm_gated(self, x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor: ...
    def regroup(self, x: Tensor, widths: Sequence[int]) -> Tensor: ...
    def join_heads(self, x: Tensor, y: Tensor, heads: int) -> Tensor: ...
    def identity_weight(self, logits: Tensor, bias: Tensor, first: int, chosen: int, scale: float) -> Tensor: ...
    def stream_weights(
        self, mixes: Tensor, scales: Tensor, base: Tensor, streams: int, rounds: int, eps: float
    ) -> Tensor: ...
    def embedding(self, table: Weight, first: int = 0, vocabulary: int = 0) -> Tensor: ...
    def place_rows(self, x: Tensor, first: int = 0, of_columns: int = 0, adds: bool = False) -> Tensor: ...
    def position_rows(self, table: Weight, first: int = 0) -> Tensor: ...
    def type_rows(self, table: Weight) -> Tensor: ...
    def stored_rows(self, table: StoredTable, otherwise: int | None = None) -> Tensor: ...
    def received(self, columns: int) -> Tensor: ...
    def sum(self, x: Tensor) -> Tensor: ...
    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor: ...
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
    def linear(
        self,
        x: Tensor,
        weights: Sequence[Weight],
        biases: Sequence[Tensor | None] = (),
        residual: Tensor | None = None,
        precision: str = "usual",
    ) -> Tensor: ...
    def linear_heads(self, x: Tensor, weights: Sequence[Weight]) -> Tensor: ...
    def adapter_index(self) -> Tensor: ...
    def linear_indexed(
        self, x: Tensor, weights: Sequence[Weight | None], index: Tensor, residual: Tensor | None = None, first: int = 0
    ) -> Tensor: ...
    def record_split(self, x: Tensor, widths: Sequence[int]) -> list[Tensor]: ...
    def rope_angles(
        self, inverse_frequencies: NDArray[np.float32], scale: float, behind: int = 0, axes: Sequence[int] = []
    ) -> Tensor: ...
    def rope(self, x: Tensor, angles: Tensor, head_dim: int, adjacent: bool = False) -> Tensor: ...
    def record_attention(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, cache: KvCache, params: AttentionParams
    ) -> Tensor: ...
    def choose_tokens(
        self, q: Tensor, weights: Tensor, k: Tensor, cache: KvCache, layer: int, count: int, ratio: int = 1
    ) -> Tensor: ...
    def record_pooled_attention(
        self,
        q: Tensor,
        k: Tensor,
        cache: KvCache,
        params: AttentionParams,
        rows: Tensor,
        window_cache: KvCache,
        layer: int,
        ratio: int,
    ) -> Tensor: ...
    def choose_blocks(
        self, q: Tensor, k: Tensor, cache: KvCache, layer: int, block: int, count: int, local: int
    ) -> Tensor: ...
    def silu_mul(self, gate_up: Tensor, up: Tensor | None = None) -> Tensor: ...
    def gelu_mul(self, gate_up: Tensor, up: Tensor | None = None, form: str = "gelu") -> Tensor: ...
    def activate(self, x: Tensor, activation: str) -> Tensor: ...
    def add(self, x: Tensor, y: Tensor) -> Tensor: ...
    def record_moe(
        self,
        x: Tensor,
        logits: Tensor,
        experts: ExpertWeights,
        routing: NativeRouting,
        residual: Tensor | None,
        choice_bias: Tensor | None = None,
        chosen: Tensor | None = None,
    ) -> Tensor: ...
    def short_convolution(
        self,
        x: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        memory: StateMemory,
        layer: int,
        silu: bool,
    ) -> Tensor: ...
    def pool_windows(
        self,
        x: Tensor,
        biases: Sequence[Tensor],
        memory: StateMemory,
        layer: int,
        ratio: int,
        widths: Sequence[int],
        overlap: bool,
    ) -> Tensor: ...
    def record_delta_rule(
        self,
        qkv: Tensor,
        beta: Tensor,
        decay: Tensor,
        decay_weight: Tensor,
        decay_bias: Tensor,
        memory: StateMemory,
        *,
        layer: int,
        key_heads: int,
        interleaved: bool,
        gain: float,
    ) -> Tensor: ...
    def record_selective_scan(
        self,
        xbc: Tensor,
        dt: Tensor,
        decay_weight: Tensor,
        decay_bias: Tensor,
        skip: Tensor,
        memory: StateMemory,
        *,
        layer: int,
        per_group: int,
        first: int,
    ) -> Tensor: ...
    def select(self, x: Tensor) -> Tensor: ...
    def finish(self, output: Tensor) -> ProgramHandle: ...

class NativeOutput:
    """The rows a program computed; overwritten by its next run."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    def numpy(self) -> NDArray[np.float32]:
        """A copy as an array."""

    def __array__(self, *args: object, **kwargs: object) -> NDArray[np.float32]:
        """A copy as an array."""

class ProgramHandle:
    """A recorded forward function."""

    def run(
        self,
        ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        query_start: NDArray[np.int32],
        context_len: NDArray[np.int32],
        block_table: NDArray[np.int32],
        sample_rows: NDArray[np.int32],
        hidden: NDArray[np.float32] | None = None,
        state: NDArray[np.int32] | None = None,
        state_copies: NDArray[np.int32] | None = None,
        token_types: NDArray[np.int32] | None = None,
        row_places: NDArray[np.int32] | None = None,
        input_rows: NDArray[np.float32] | None = None,
        rope_positions: NDArray[np.int32] | None = None,
        seen_spans: NDArray[np.int32] | None = None,
        adapters: NDArray[np.int32] | None = None,
    ) -> NativeOutput: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """
        Address, bytes and home of what each thread has for itself; nothing where all threads have one home.
        """

    def barriers(self, tokens: int, sequences: int) -> int:
        """Times the threads wait for each other in such a step."""

    def expert_usage(self) -> NDArray[np.uint64]:
        """
        Tokens that each expert was computed for so far: [MoE layers, experts].
        """

    def measure_phases(self, on: bool) -> None:
        """Adds up the time of each phase from now on, or forgets it."""

    def phase_times(self) -> list[tuple[str, int, float, float]]:
        """
        Name, runs, seconds, and of these seconds at the barrier, for each kind of phase.
        """

class NativeSamplingArrays:
    """
    How to draw from each row: see homenode.compute.ops.SamplingArrays. All fields must be set, to arrays of their type; they are read when tokens are drawn.
    """

    def __init__(self) -> None: ...
    @property
    def repetition_penalty(self) -> NDArray[np.float32]: ...
    @repetition_penalty.setter
    def repetition_penalty(self, array: NDArray[np.float32]) -> None: ...
    @property
    def frequency_penalty(self) -> NDArray[np.float32]: ...
    @frequency_penalty.setter
    def frequency_penalty(self, array: NDArray[np.float32]) -> None: ...
    @property
    def presence_penalty(self) -> NDArray[np.float32]: ...
    @presence_penalty.setter
    def presence_penalty(self, array: NDArray[np.float32]) -> None: ...
    @property
    def temperature(self) -> NDArray[np.float32]: ...
    @temperature.setter
    def temperature(self, array: NDArray[np.float32]) -> None: ...
    @property
    def dynatemp_range(self) -> NDArray[np.float32]: ...
    @dynatemp_range.setter
    def dynatemp_range(self, array: NDArray[np.float32]) -> None: ...
    @property
    def dynatemp_exponent(self) -> NDArray[np.float32]: ...
    @dynatemp_exponent.setter
    def dynatemp_exponent(self, array: NDArray[np.float32]) -> None: ...
    @property
    def top_n_sigma(self) -> NDArray[np.float32]: ...
    @top_n_sigma.setter
    def top_n_sigma(self, array: NDArray[np.float32]) -> None: ...
    @property
    def top_k(self) -> NDArray[np.int32]: ...
    @top_k.setter
    def top_k(self, array: NDArray[np.int32]) -> None: ...
    @property
    def typical_p(self) -> NDArray[np.float32]: ...
    @typical_p.setter
    def typical_p(self, array: NDArray[np.float32]) -> None: ...
    @property
    def top_p(self) -> NDArray[np.float32]: ...
    @top_p.setter
    def top_p(self, array: NDArray[np.float32]) -> None: ...
    @property
    def min_p(self) -> NDArray[np.float32]: ...
    @min_p.setter
    def min_p(self, array: NDArray[np.float32]) -> None: ...
    @property
    def max_surprise(self) -> NDArray[np.float32]: ...
    @max_surprise.setter
    def max_surprise(self, array: NDArray[np.float32]) -> None: ...
    @property
    def xtc_probability(self) -> NDArray[np.float32]: ...
    @xtc_probability.setter
    def xtc_probability(self, array: NDArray[np.float32]) -> None: ...
    @property
    def xtc_threshold(self) -> NDArray[np.float32]: ...
    @xtc_threshold.setter
    def xtc_threshold(self, array: NDArray[np.float32]) -> None: ...
    @property
    def seed(self) -> NDArray[np.uint64]: ...
    @seed.setter
    def seed(self, array: NDArray[np.uint64]) -> None: ...
    @property
    def counter(self) -> NDArray[np.uint64]:
        """The index of the token that is drawn in its sequence."""

    @counter.setter
    def counter(self, array: NDArray[np.uint64]) -> None: ...
    @property
    def bias_start(self) -> NDArray[np.int32]:
        """
        Row i has the entries bias_start[i] .. bias_start[i + 1] - 1 of the next two.
        """

    @bias_start.setter
    def bias_start(self, array: NDArray[np.int32]) -> None: ...
    @property
    def bias_token(self) -> NDArray[np.int32]: ...
    @bias_token.setter
    def bias_token(self, array: NDArray[np.int32]) -> None: ...
    @property
    def bias_value(self) -> NDArray[np.float32]: ...
    @bias_value.setter
    def bias_value(self, array: NDArray[np.float32]) -> None: ...
    @property
    def seen_start(self) -> NDArray[np.int32]:
        """
        Row i has the entries seen_start[i] .. seen_start[i + 1] - 1 of the next two.
        """

    @seen_start.setter
    def seen_start(self, array: NDArray[np.int32]) -> None: ...
    @property
    def seen_token(self) -> NDArray[np.int32]: ...
    @seen_token.setter
    def seen_token(self, array: NDArray[np.int32]) -> None: ...
    @property
    def seen_count(self) -> NDArray[np.int32]: ...
    @seen_count.setter
    def seen_count(self, array: NDArray[np.int32]) -> None: ...
    @property
    def mask_row(self) -> NDArray[np.int32]:
        """The row of `masks` for each row of logits; -1: none."""

    @mask_row.setter
    def mask_row(self, array: NDArray[np.int32]) -> None: ...
    @property
    def masks(self) -> NDArray[np.uint32]:
        """[masks, words] a bit for each token that may be drawn."""

    @masks.setter
    def masks(self, array: NDArray[np.uint32]) -> None: ...

class NativeSampler:
    """Draws tokens from logits; see homenode.compute.ops.SamplingArrays."""

    def __init__(self, pool: ThreadPool, level: Level) -> None: ...
    def sample(
        self, logits: NativeOutput, arrays: NativeSamplingArrays, num_logprobs: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        """
        Tokens, log-probabilities, most likely tokens and theirs. num_logprobs < 0: log-probabilities are not computed.
        """

    def score(
        self, logits: NativeOutput, rows: NDArray[np.int32], targets: NDArray[np.int32], num_logprobs: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        """The same for given tokens: targets[i] in row rows[i]."""

def uniform(seed: int, counter: int) -> float:
    """The number in [0, 1) a draw uses."""

class ReadBuffer:
    """Memory to read, a slice for each thread of a thread pool."""

    def __init__(self, pool: ThreadPool, bytes_per_thread: int) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def huge_pages(self) -> bool: ...
    def read(self, level: Level, eight_streams: bool, part: int, parts: int) -> float:
        """Seconds in which all threads read a part of their slices."""

class Multiply(enum.Enum):
    """Kinds of products."""

    int8 = 0

    bf16 = 1

    f32 = 2

    int6 = 3

def multiply_burst(pool: ThreadPool, level: Level, kind: Multiply, rounds: int) -> tuple[int, list[float]]:
    """Operations each thread did in registers, and the seconds it took."""

def round_trip_ns(pool: ThreadPool, other: int, rounds: int) -> float:
    """Nanoseconds until thread 0 has an answer from another."""
