"""What holds for all tests."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from functools import cache
from typing import Any

import pytest

with contextlib.suppress(ImportError):  # some guests of the lab have pytest alone
    from hypothesis import HealthCheck, settings

    from tests.examples import examples

    # How long an example takes says how busy the machine is. A test that hangs is ended by pytest-timeout.
    settings.register_profile(
        "homenode", deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("homenode")

with contextlib.suppress(ImportError):
    import httpx
    from httpx._transports import default as transports

    def share_tls_context(make: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
        """Return `make` that makes the context of clients that ask for none of their own once: reading the certificates
        of all authorities takes 35 ms of CPU time, which httpx does for every client and every call, of plain HTTP too.
        """
        shared = cache(make)

        def made(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
            return shared() if verify is True and cert is None else make(verify, cert, trust_env)

        return made

    vars(transports)["create_ssl_context"] = share_tls_context(httpx.create_ssl_context)


def pytest_configure(config: pytest.Config) -> None:
    """Engines of tests claim CPUs in a folder of this process alone: what others run on this machine, tests beside
    these among them, decides nothing here.
    """
    folder = tempfile.mkdtemp(prefix="homenode-tests-")
    os.environ["HOMENODE_STATE_DIR"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    # A script starts what it has in the background with SIGINT ignored, which servers of tests would inherit.
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Where there are to be several processes, write the bytecode once for all of them."""
    if session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput"):
        from tests.support.bytecode import make_bytecode

        make_bytecode(session.config)


@pytest.fixture(autouse=True)
def forget_consoles() -> Generator[None]:
    """Leave no console to the next test: it keeps the width of the terminal that it was made in."""
    yield
    report = sys.modules.get("homenode.cli.output.report")
    for name in ("OUT", "ERR") if report is not None else ():
        vars(report).pop(name, None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nearly all that is made while tests are collected, millions of objects, is there to the end. To look for garbage
    among it would take a third of that time, and half a second again and again later, also inside what a test measures
    and in each process that is forked.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests are begun before all others: while the last one of many runs, nobody else has anything to do."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """One thread of torch for each test. An engine in this process leaves it as many as the engine had, and threads
    that wait for each other on CPUs that others want make a test of toys take a hundred times as long.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
