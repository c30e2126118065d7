"""Bytecode of what guests import, made on the host: an emulated processor takes twenty times as long to compile it, and
each guest would anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from tools.lab.folder import ROOT

_COMPILE_S = 120.0
_FOLDERS = ("src", "tests", "tools")
_TESTS = r"/test_\w+\.py$"  # pytest writes bytecode of its own for those that it collects


def make_bytecode(options: Sequence[str]) -> None:
    """Of the package, and of the tests as pytest rewrites them when it is given these options. Without it guests are
    slower, and no less right.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    compile_all = ["compileall", "-q", "-x", _TESTS, *_FOLDERS]
    for words in (compile_all, ["pytest", *options, "--quiet", "--collect-only", "tests/lab"]):
        subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, env=env, capture_output=True, timeout=_COMPILE_S, check=False
        )
