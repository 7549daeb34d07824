"""A worker process: ``python -m trtops.executor DESCRIPTOR``. Started by :mod:`trtops.executor.supervisor` only.

This module is a composition root: backends are made here, by name. The descriptor is one end of a pair of sockets;
:mod:`trtops.executor.orders` says what travels there.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import socket
import sys
from functools import cache

from trtops.executor.process import bind_to_parent

_SWITCH_INTERVAL = 0.001
"""Seconds: a request's way is short steps in several threads; by Python's default each may wait 5 ms for another."""


def main(arguments: list[str]) -> int:
    """Serve until the supervisor says stop, or is gone."""
    bind_to_parent()
    faulthandler.enable()
    logging.basicConfig(
        level=os.environ.get("TRTOPS_WORKER_LOG", "WARNING"),
        format=f"%(asctime)s worker {os.getpid()} %(levelname)s %(name)s: %(message)s",
    )
    from trtops.backend import select
    from trtops.executor.hosting import serve

    sys.setswitchinterval(_SWITCH_INTERVAL)
    gc.freeze()  # modules live to the end: the collector need not look at them again
    with socket.socket(fileno=int(arguments[0])) as end:
        serve(end, cache(select.backend))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
