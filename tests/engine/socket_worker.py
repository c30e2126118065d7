"""A worker of a model, with channels over sockets: `python -m tests.engine.socket_worker FD PARENT NAME`."""

from __future__ import annotations

import sys

from homenode.engine.worker.main import main
from tests.engine.socket_channels import open_sockets

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], open_for=open_sockets))
