"""Names and imports of the package: a class name is used once, banned words have better ones, and imports form no
cycle.

The lists of banned names that are still in use may only shrink: a test also fails for one that is gone.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import pytest

from tests.paths import ROOT

SOURCES = ROOT / "src"

_PARTS = ("body", "orelse", "finalbody", "handlers", "cases")  # of a statement: where further statements are

Arrow = tuple[str, str]  # the module or folder that imports, and the one that is imported


def by_word(text: str) -> dict[str, str]:
    """{word: better words} of lines `word word ...: better words`."""
    rows = (line.split(": ") for line in text.strip().splitlines())
    return {word: better for words, better in rows for word in words.split()}


# Not as any word of the name of a module, a folder or a class.
WORDS = by_word("""
aim: BindingPlan
attend attendant companion: sidecar, watchdog
books: stats, audit, LoadTable
crew members: WorkerPool, supervisor
crowding: CPU contention
delivery deliveries: KvImport
departed: dead peers
door: middleware, fd channel
elsewhere: the name of the other place
feeder feeding: driver
figures tally statistics: stats, metrics
flights: in flight
grace: SuspendGuard
handing: fd channel
handoff handover: KV transfer
hearing: listener
home homes: NUMA node, node of a part
intake: arrivals
journey: RoutedStream, ProxiedRequest
keeper: supervisor
ladder: fallback
limbo: open tickets
loan loans lending: exports, pinned blocks
losing losses: recovery
member: WorkerHandle
mixture mixtures: MoE
pace: MicroBatching
patience: RestartPolicy
performer performing: ActionExecutor
promises: wake hints
reached: achieved
reception: acceptor
residents: KvAllocator
room rooms: reservations; available bytes, capacity, sizing
seam: events
seat: placement
senders receivers: peers
settle: pin, apply, resolve, finish
site sites: address
standing: busy waiting
steady: repetition
strayed: off-node share
switchboard: FrontMux
traps: doctor checks
""")
# Not as the whole name of a module or a folder.
MODULES = by_word("""
at_once: fast path
counting expert_uses: expert usage
division: partition
grains: alignment
incoming_said incoming_reads incoming_ends incoming_pages: states
live: requests
location: model path
once: a noun
pairing handing_over: KV transfer
place places: placement, binding, NUMA node, address
sending receiving: config
there: what is detected, resident bytes, ready
turns: agent loop
""")
# Not as the whole name of a class, leading underscores aside.
CLASSES = by_word("""
AtOnce: FastPath
Coding EncodedPart: QuantSpec, QuantizedActivations
Division: PartitionSpec
Grain: alignment
HandOff HandOver HandingOver: KV transfer
IncomingSaid IncomingReads IncomingEnds IncomingPages: states
LiveRequests: RequestTable
LossRecord: WorkerFailures
Place EnginePlace WorkerPlaces: placement, binding, NUMA node, address
Residency: BlockAllocation
Share: shard
Silent: NullProgress
Span: Range
Turns: AgentLoop
""")

# Banned names that are still in use.
BANNED_MODULES: frozenset[str] = frozenset()
BANNED_CLASSES: frozenset[str] = frozenset()


class Module(NamedTuple):
    """What a module defines and imports. `imports`: `from a import b` gives a.b, which may be a module or a
    name in a.
    """

    classes: list[str]
    imports: set[str]


@cache
def modules() -> dict[str, Module]:
    """The modules of the package by their dotted names; a folder is its __init__."""
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = read_module(path.read_text(encoding="utf-8"))
    return found


def read_module(text: str) -> Module:
    nodes = nodes_of(text)
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    return Module(classes, {target for node in nodes for target in imported(node)})


def nodes_of(text: str) -> list[ast.AST]:
    """The statements, and where `import_module` is called all syntax nodes."""
    tree = ast.parse(text)
    if "import_module(" in text:
        return list(ast.walk(tree))
    found: list[ast.AST] = []
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        found.append(node)
        left += [inner for part in _PARTS for inner in getattr(node, part, ())]
    return found


def class_names() -> dict[str, list[str]]:
    """The modules that define each class."""
    found = defaultdict(list)
    for name, module in modules().items():
        for each in module.classes:
            found[each].append(name)
    return found


def words_of(name: str) -> list[str]:
    """`NoRoom`, `_no_room` and `KVRoom` -> their words in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+", name)]


def better_name(name: str, whole: Mapping[str, str]) -> str:
    """What a name should be instead, or nothing. `whole`: names banned as a whole."""
    plain = name.lstrip("_")
    return whole.get(plain) or next((WORDS[word] for word in words_of(plain) if word in WORDS), "")


def imported(node: ast.AST) -> Iterator[str]:
    """Dotted names that a node imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, "imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "import_module" and isinstance(node.args[0].value, str):
            yield node.args[0].value


def module_arrows(sources: Mapping[str, Module]) -> set[Arrow]:
    """Which module imports which, at the top, in functions and for type checkers alike."""
    found = set()
    for name, module in sources.items():
        for target in module.imports:
            known = target
            while known and known not in sources:
                known = known.rpartition(".")[0]
            if known not in ("", name, "homenode"):  # the package itself has its version only, and names imported late
                found.add((name, known))
    return found


def folder_of(module: str, folders: Collection[str], depth: int) -> str:
    """The folder of a module, at most `depth` below the package. Modules beside the folders of the package stand for
    themselves.
    """
    folder = module if module in folders else module.rpartition(".")[0]
    return ".".join(folder.split(".")[: depth + 1]) if folder != "homenode" else module


def folder_arrows(arrows: Collection[Arrow], folders: Collection[str], depth: int) -> set[Arrow]:
    """Which folder imports from which, with what lies deeper counted to it."""
    pairs = {(folder_of(a, folders, depth), folder_of(b, folders, depth)) for a, b in arrows}
    return {(a, b) for a, b in pairs if a != b}


def cycle(arrows: Iterable[Arrow]) -> list[str]:
    """One cycle of these arrows; empty if there is none."""
    graph = defaultdict(set)
    for source, target in arrows:
        graph[source].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def all_folders() -> set[str]:
    return {module.rpartition(".")[0] for module in modules() if "." in module}


def test_a_class_name_is_used_once() -> None:
    twice = {name: modules for name, modules in class_names().items() if len(modules) > 1}
    assert not twice, f"class names used twice, put the owner's word in front of one: {twice}"


def test_classes_of_the_native_core_have_names_of_their_own() -> None:
    """What Python sees of the C++ core, as its stub has it."""
    stub = ast.parse((ROOT / "src/homenode/_native.pyi").read_text(encoding="utf-8"))
    native = {node.name for node in stub.body if isinstance(node, ast.ClassDef)}
    assert native
    assert not native & class_names().keys(), "name what is bound after its Python class, with Native in front"


def test_modules_are_named_in_the_words_of_the_field() -> None:
    banned = {
        name.removeprefix("homenode."): better
        for name in modules()
        if (better := better_name(name.rpartition(".")[2], MODULES))
    }
    assert not (new := {name: banned[name] for name in banned.keys() - BANNED_MODULES}), f"better names: {new}"
    assert not BANNED_MODULES - banned.keys(), f"take these exceptions away: {BANNED_MODULES - banned.keys()}"


def test_classes_are_named_in_the_words_of_the_field() -> None:
    banned = {name: better for name in class_names() if (better := better_name(name, CLASSES))}
    assert not (new := {name: banned[name] for name in banned.keys() - BANNED_CLASSES}), f"better names: {new}"
    assert not BANNED_CLASSES - banned.keys(), f"take these exceptions away: {BANNED_CLASSES - banned.keys()}"


def test_modules_do_not_import_each_other() -> None:
    arrows = module_arrows(modules())
    assert len(arrows) > len(modules())
    assert not (found := cycle(arrows)), f"imports in a cycle: {' <- '.join(found)}"


def test_folders_do_not_import_each_other() -> None:
    arrows, folders = module_arrows(modules()), all_folders()
    for depth in range(1, max(name.count(".") for name in folders) + 1):
        found = cycle(folder_arrows(arrows, folders, depth))
        assert not found, f"imports of folders in a cycle: {' <- '.join(found)}"


@pytest.mark.parametrize(
    ("name", "whole", "banned"),
    [
        ("NoRoom", CLASSES, True),
        ("_RoomTable", CLASSES, True),
        ("Span", CLASSES, True),
        ("HeadSpan", CLASSES, False),
        ("Classroom", CLASSES, False),
        ("node_room", MODULES, True),
        ("places", MODULES, True),
        ("market_places", MODULES, False),
    ],
)
def test_a_banned_word_is_found_in_a_name(name: str, whole: Mapping[str, str], banned: bool) -> None:
    assert bool(better_name(name, whole)) == banned


@pytest.mark.parametrize(
    "line",
    [
        "import homenode.a.one",
        "from homenode.a import one",
        "from homenode.a.one import Thing",
        "def later():\n    from homenode.a.one import Thing",
        "if TYPE_CHECKING:\n    from homenode.a.one import Thing",
        "import_module('homenode.a.one')",
    ],
)
def test_a_cycle_is_found_however_it_is_closed(line: str) -> None:
    sources = {
        "homenode.a": "", "homenode.b": "", "homenode.a.one": "from homenode.b.two import Other",
        "homenode.b.two": line,
    }  # fmt: skip
    planted = {name: read_module(text) for name, text in sources.items()}
    arrows = module_arrows(planted)
    assert set(cycle(arrows)) == {"homenode.a.one", "homenode.b.two"}
    assert set(cycle(folder_arrows(arrows, {"homenode", "homenode.a", "homenode.b"}, 1))) == {
        "homenode.a",
        "homenode.b",
    }
    assert not cycle(arrows - {("homenode.b.two", "homenode.a.one")})
