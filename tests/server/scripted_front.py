"""A front's process over the scripted engine's tokens: `python -m tests.server.scripted_front FDS PARENT NAME`.

The path of its model is a folder. While there is a file `unreadable` in it no vocabulary is read; and while there is a
file `late` the first front makes no application; with a file `unmade` none can make one. A `tokenizer.json` is read,
where it is there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from homenode.errors import CheckpointError, HostError
from homenode.model.formats.bounded_files import read_text
from homenode.server.fronts.main import main
from homenode.server.fronts.messages import FrontModel
from tests.server.fakes import ByteTokenizer
from tests.waiting import wait_until


def load(model: FrontModel) -> ByteTokenizer:
    if (Path(model.path) / "unreadable").exists():
        raise CheckpointError("this vocabulary cannot be read")
    if (file := Path(model.path) / "tokenizer.json").exists():
        read_text(file, 1000)
    late = Path(model.path) / "late"
    if late.exists() and sys.argv[3].endswith("-0"):
        _make_application_late(late)
    if (Path(model.path) / "unmade").exists():
        _make_no_application()
    return ByteTokenizer()


def _make_application_late(late: Path) -> None:
    from homenode.server import app

    create_app = app.create_app

    def create_late(*arguments: Any) -> Any:
        wait_until(lambda: not late.exists())
        return create_app(*arguments)

    app.create_app = create_late


def _make_no_application() -> None:
    from homenode.server import app

    def create_none(*arguments: Any) -> Any:
        raise HostError("the application is broken")

    app.create_app = create_none


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], load))
