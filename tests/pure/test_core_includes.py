"""Each file of the core includes, itself or through headers of ours, what it uses of the standard library.

The compiler does not say so: it gets the headers of HOMENODE_PRECOMPILED in CMakeLists.txt with every file, which takes
it half a second less.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

CORE = ROOT / "csrc"
_OF_STD = {
    "array": "array",
    "algorithm": (
        "sort|stable_sort|partial_sort|nth_element|min|max|clamp|min_element|max_element|copy|copy_n|fill|fill_n|find|"
        "find_if|any_of|all_of|none_of|lower_bound|upper_bound|binary_search|equal|reverse|remove|remove_if|count|"
        "count_if|transform|generate|rotate|unique|push_heap|pop_heap|make_heap|is_sorted"
    ),
    "atomic": "atomic|atomic_ref|atomic_thread_fence|memory_order\\w*",
    "cmath": (
        "sqrt|exp|log|log2|pow|fabs|isnan|isfinite|isinf|floor|ceil|round|lround|lrint|nearbyint|tanh|erf|ldexp|trunc"
    ),
    "functional": "function|hash|less|greater|plus|ref",
    "limits": "numeric_limits",
    "map": "map|multimap",
    "memory": "unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared",
    "mutex": "mutex|lock_guard|unique_lock|scoped_lock|once_flag|call_once",
    "optional": "optional|nullopt",
    "span": "span",
    "string": "string|to_string",
    "unordered_map": "unordered_map",
    "utility": "pair|move|forward|swap|exchange",
    "vector": "vector",
}
USES = {header: re.compile(rf"\bstd::(?:ranges::)?(?:{names})\b") for header, names in _OF_STD.items()} | {
    "cstdint": re.compile(r"\bu?int(?:8|16|32|64|ptr)_t\b"),
    "cstring": re.compile(r"\b(?:mem(?:cpy|set|move|cmp)|str(?:len|error|cmp|ncmp))\("),
}


def code_of(path: Path) -> str:
    return re.sub(r"//.*", "", path.read_text(encoding="utf-8"))


@cache
def included(path: Path) -> frozenset[str]:
    """The standard headers that a file includes, itself or through files of ours."""
    code = code_of(path)
    own = [CORE / name for name in re.findall(r'#include "([^"]+)"', code)]
    return frozenset(re.findall(r"#include <(\w+)>", code)).union(*(included(each) for each in own if each.exists()))


def forgotten(path: Path) -> list[str]:
    code, there = code_of(path), included(path)
    return [header for header, uses in USES.items() if uses.search(code) and header not in there]


def test_every_file_includes_what_it_uses() -> None:
    files = sorted([*CORE.rglob("*.cpp"), *CORE.rglob("*.h")])
    assert len(files) > 200
    found = {path.relative_to(CORE).as_posix(): headers for path in files if (headers := forgotten(path))}
    assert not found, f"standard headers that are used and not included: {found}"


def test_all_that_is_precompiled_is_looked_for() -> None:
    (headers,) = re.findall(r"set\(HOMENODE_PRECOMPILED (.*)\)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
    assert set(re.findall(r"<(\w+)>", headers)) <= USES.keys()


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("std::vector<int> a; std::sort(a.begin(), a.end());", ["algorithm", "vector"]),
        ('#include "base/types.h"\nint64_t a = std::min(b, c);', ["algorithm"]),
        ("#include <cstring>\nvoid f() { memcpy(a, b, 8); }  // std::map", []),
        ("std::atomic<bool> a; auto b = a.load(std::memory_order_relaxed);", ["atomic"]),
        ("my::vector a; a.count(8); std::vectors b;", []),
    ],
)
def test_what_a_file_forgets(text: str, headers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CORE", tmp_path)
    (tmp_path / "base").mkdir()
    (tmp_path / "base/types.h").write_text("#include <cstdint>\n")
    (file := tmp_path / "a.cpp").write_text(text + "\n")
    assert sorted(forgotten(file)) == headers
