"""The pages that say where things are in the code stay true: what they name exists, and their lists of files are whole.

docs/glossary.md, docs/life-of-a-request.md, docs/where.md and ARCHITECTURE.md write paths from src/homenode or csrc on,
or from the root of the repository, and a function of a file as `file.py:Class.function`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/glossary.md", "docs/life-of-a-request.md", "docs/where.md")
MOST_TERMS = 73
LEAST_RECIPES = 20
_BASES = (ROOT, ROOT / "src/homenode", ROOT / "csrc")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"((?:[\w.-]+/)+[\w.{},*-]+|[\w-]+\.(?:py|pyi|cpp|h|txt))(?::([\w.:]+))?")
_GREP = re.compile(r"^`git grep -l(i?w?)E? '?([^' ]+)'? -- ([^`]+)` finds exactly", re.MULTILINE)
_SUFFIXES = (".py", ".pyi", ".cpp", ".h", ".txt", ".js")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def find(path: str) -> Path | None:
    """The file or folder that a page means."""
    return next((base / path for base in _BASES if (base / path).exists()), None)


def references(page: str) -> Iterator[tuple[str, str]]:
    """(path, name) of each file, folder or function that a page names; the name is empty for a file or folder."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\n|\n(?=- )", _GREP.sub("", text)):
        folder = ""
        for code in _CODE.findall(paragraph):
            match = _PATH.fullmatch(code)
            if match is None or re.match(r"/|\.\.|~", code):
                continue
            for path in expanded(match[1]):
                if "/" not in path and find(path) is None:  # a file of the folder that was named before it
                    path = f"{folder}/{path}"
                elif "/" in path:
                    folder = path.rpartition("/")[0] if "." in path else path
                yield path, match[2] or ""


def expanded(path: str) -> list[str]:
    """`a/{b,c}.py` as both paths."""
    match = re.fullmatch(r"(.*)\{([^}]+)\}(.*)", path)
    return [f"{match[1]}{part}{match[3]}" for part in match[2].split(",")] if match else [path]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions, classes and `Class.function`s of a Python file, and what it assigns at its top."""
    found: set[str] = set()

    def take(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                take(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    take(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(found)


def is_in(path: Path, name: str) -> bool:
    if path.suffix == ".py":
        return name in names_in(path)
    return re.search(rf"\b{re.escape(name.split('::')[-1])}\b", path.read_text(encoding="utf-8")) is not None


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_function_that_a_page_names_exists(page: str) -> None:
    wrong = []
    for path, name in references(page):
        place = find(path)
        if place is None or (name and (place.is_dir() or not is_in(place, name))):
            wrong.append(f"{path}:{name}" if name else path)
    assert not wrong, f"{page} names what is not there: {wrong}"


def test_a_name_that_is_not_there_is_found() -> None:
    assert find("engine/no_such_file.py") is None
    place = find("engine/request.py")
    assert place is not None and is_in(place, "Request") and not is_in(place, "NoSuchClass")
    assert _PATH.fullmatch("engine/a.py:Class.function") and not _PATH.fullmatch("homenode serve")
    assert expanded("a/{b,c}.py") == ["a/b.py", "a/c.py"]


def glossary() -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text_of("docs/glossary.md").splitlines() if line.startswith("| ")]
    return [row for row in rows if set(row[0]) != {"-"}][1:]


def test_the_glossary_has_few_terms_each_once_in_order() -> None:
    terms = [row[0] for row in glossary()]
    assert 40 <= len(terms) <= MOST_TERMS
    assert terms == sorted(set(terms), key=str.lower)
    assert all(len(row) == 4 for row in glossary())


def test_each_class_of_the_glossary_is_in_its_file() -> None:
    for row in glossary():
        places = _CODE.findall(row[3])
        assert places, f"{row[0]}: no class"
        for code in places:
            match = _PATH.fullmatch(code)
            assert match is not None and match[2], f"{row[0]}: `{code}` is not `file:name`"


def recipes() -> dict[str, str]:
    """Title -> text of each recipe."""
    parts = re.split(r"^## (.+)$", text_of("docs/where.md"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_there_are_enough_recipes() -> None:
    assert len(recipes()) >= LEAST_RECIPES


@pytest.mark.parametrize("title", recipes() if (ROOT / "docs/where.md").exists() else [])
def test_a_recipe_lists_exactly_the_files_that_hold_its_example(title: str) -> None:
    """The numbered files of a recipe are those that hold the word its `git grep` looks for, no more and no less."""
    text = recipes()[title]
    command = _GREP.search(text)
    assert command is not None, "a recipe ends with the command that finds its files"
    steps = text[: command.start()]
    listed = {
        str(place.relative_to(ROOT))
        for code in _CODE.findall("\n".join(re.findall(r"^\d+\. (.*?)(?::|$)", steps, re.MULTILINE)))
        if (match := _PATH.fullmatch(code))
        for path in expanded(match[1])
        if (place := find(path)) is not None
    }
    flags = re.IGNORECASE if "i" in command[1] else 0
    pattern = re.compile(rf"\b(?:{command[2]})\b" if "w" in command[1] else command[2], flags)
    assert listed == matching(pattern, command[3].split()), command[0]


@pytest.mark.parametrize("title", recipes() if (ROOT / "docs/where.md").exists() else [])
def test_a_recipe_of_many_files_says_which_the_next_one_of_the_kind_needs(title: str) -> None:
    text = recipes()[title]
    steps = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert steps == list(range(1, len(steps) + 1))
    told = re.search(r"^Another .*?touches ([^.]+)\.", text, re.MULTILINE | re.DOTALL)
    assert told is not None or len(steps) < 4, "a line `Another one touches 1 and 3.` behind the command"
    assert told is None or {int(number) for number in re.findall(r"\d+", told[1])} <= set(steps)


@pytest.mark.parametrize("title", recipes() if (ROOT / "docs/where.md").exists() else [])
def test_a_recipe_names_the_tests_to_add_to(title: str) -> None:
    _, _, then = recipes()[title].partition("finds exactly these files.")
    then = re.sub(r"^Another .*?\n\n", "", then.lstrip(), flags=re.DOTALL)
    named = [match[1] for code in _CODE.findall(then) if (match := _PATH.fullmatch(code))]
    tests = [path for path in named if path.startswith("tests/") and find(path) is not None]
    assert then.strip().startswith("Then: ") and tests, "no test is named behind `Then:`"


def test_what_every_change_touches_is_said_once() -> None:
    beginning = text_of("docs/where.md").partition("\n## ")[0]
    assert "changes/README.md" in beginning and "make stubs" in beginning and "docs/glossary.md" in beginning


@cache
def sources(top: str) -> dict[str, str]:
    """Path -> text of the sources below a path."""
    place = ROOT / top
    assert place.exists(), top
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in files
        if path.suffix in _SUFFIXES and path.is_file()
    }


def matching(pattern: re.Pattern[str], tops: list[str]) -> set[str]:
    """The files below these paths in which the pattern occurs."""
    words = re.fullmatch(r"\\b\(\?:([\w|]+)\)\\b", pattern.pattern)
    plain = words[1].split("|") if words and not pattern.flags & re.IGNORECASE else [""]  # looked for much faster
    return {
        path
        for top in tops
        for path, text in sources(top).items()
        if any(word in text for word in plain) and pattern.search(text)
    }


def test_the_overview_is_short_and_has_one_drawing() -> None:
    lines = text_of("ARCHITECTURE.md").splitlines()
    assert len(lines) <= 250
    assert sum(line.startswith("```") for line in lines) == 2


@pytest.mark.parametrize("page", PAGES)
def test_lines_fit(page: str) -> None:
    wide = [line for line in text_of(page).splitlines() if len(line) > 120 and not line.startswith("| ")]
    assert not wide
