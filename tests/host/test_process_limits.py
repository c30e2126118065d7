"""Small limits: stacks that are large enough all the same, and a sentence where the limit is in the way."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

_COMPUTE = """
import ctypes, resource, threading
from homenode.host.process_limits import ENOUGH, ensure_thread_stacks, on_large_stack
ensure_thread_stacks()
libc = ctypes.CDLL(None)
attributes, size = ctypes.create_string_buffer(256), ctypes.c_size_t()
libc.pthread_getattr_default_np(attributes)
libc.pthread_attr_getstacksize(attributes, ctypes.byref(size))
print(size.value == ENOUGH, threading.stack_size() == ENOUGH)
print(on_large_stack(lambda: threading.current_thread() is threading.main_thread()))
"""


def _limited(limit: int, size: int, *words: str) -> subprocess.CompletedProcess[str]:
    def lower() -> None:
        resource.setrlimit(limit, (size, size))

    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=60, preexec_fn=lower, check=False
    )


@pytest.mark.parametrize("kib", [256, 512, 768])
def test_threads_have_stacks_of_their_own_size(kib: int) -> None:
    done = _limited(resource.RLIMIT_STACK, kib << 10, "-c", _COMPUTE)
    assert done.stdout.splitlines()[0] == "True True", (done.stdout, done.stderr)


@pytest.mark.parametrize("kib", [256, 512])
def test_a_model_computes_with_a_small_stack(kib: int) -> None:
    pytest.importorskip("homenode._native")
    words = ("-m", "homenode", "generate", "builtin", "--prompt", "a", "--max-tokens", "2")
    done = _limited(resource.RLIMIT_STACK, kib << 10, *words)
    assert done.returncode == 0, done.stderr


def test_too_little_memory_for_libraries_is_told_with_the_limit() -> None:
    done = _limited(resource.RLIMIT_DATA, 60 << 20, "-m", "homenode", "serve", "builtin", "--check-config")
    assert done.returncode == 1
    assert "ulimit -d" in done.stderr and "Traceback" not in done.stderr
