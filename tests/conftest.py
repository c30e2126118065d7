"""What holds for all tests."""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):  # some guests of the lab have pytest alone
    from hypothesis import HealthCheck, settings

    from tests.examples import examples

    # How long an example takes says how busy the machine is. A test that hangs is ended by pytest-timeout.
    settings.register_profile(
        "homenode", deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("homenode")
