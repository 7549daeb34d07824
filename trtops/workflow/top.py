"""``trtops top``: what a server does now, from its metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trtops.errors import Unavailable
from trtops.report import load as report

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console


def scrape(url: str) -> report.Scrape:
    """Read a server's metrics.

    Args:
        url: of its control port.

    Raises:
        InputError: the URL is none.
        Unavailable: nobody answers there, or it is no server of this kind.
    """
    from trtops.serve.client import fetch

    text = fetch(url, "/metrics", timeout=10.0).decode(errors="replace")
    try:
        found = report.parse(text)
    except ValueError as error:
        raise Unavailable(f"the answer is no metrics: {error}", where=url, fix="give the control port") from None
    if not any(name.startswith("trtops_") for name, _ in found):
        raise Unavailable("no metrics of trtops are there", where=url, fix="give the control port of `trtops serve`")
    return found


def once(
    url: str,
    interval: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[report.EngineLoad, ...]:
    """What every engine did in ``interval`` seconds.

    Raises:
        InputError: the URL is none.
        Unavailable: nobody answers there.
    """
    before, began = scrape(url), clock()
    sleep(interval)
    return report.loads(before, scrape(url), max(1e-6, clock() - began))


def watch(
    url: str,
    interval: float,
    console: Console,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Show a table, again every ``interval`` seconds, until interrupted. A server that goes away is waited for.

    Raises:
        InputError: the URL is none.
        Unavailable: nobody answers there at the start.
    """
    from rich.live import Live
    from rich.text import Text

    name = urlsplit(url if "://" in url else f"http://{url}").netloc
    before, seen = scrape(url), clock()
    with Live(Text(f"{name}: looking for {interval:g} s …"), console=console, auto_refresh=False, screen=False) as live:
        while True:
            sleep(interval)
            try:
                now = scrape(url)
            except Unavailable as error:
                live.update(Text(f"{error}"), refresh=True)
                continue
            found = report.loads(before, now, max(1e-6, clock() - seen))
            before, seen = now, clock()
            live.update(report.table(found, f"{name}, the last {interval:g} s"), refresh=True)
