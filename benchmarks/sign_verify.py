"""Signing and verifying a release of a large engine, against SHA-256 of its file alone.

    python benchmarks/sign_verify.py --size 300 --rounds 15

- ``sha256``: ``hashlib`` over the file, read through one buffer; the peer.
- ``sign``: what a publisher does with an engine that the store has: every document of a release (provenance, evidence,
  verdicts, engine and config release, binding) is made, signed, verified as a service would and put into a registry in
  memory. The engine's bytes are not read: the store hashed them as it took them in, and its digest is what is signed.
- ``verify``: what a service does before it loads: all of those documents with their signatures, and the file's bytes.
- ``sha256sum``: the same file by the system's tool, for scale, where there is one.

Each round runs all of them in an order that turns, on a file that is in memory; a ratio is taken within its round. CPU
is user and system time of this process.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.releases import CHANNEL, NOW, bundle, candidate, has_all, sidecar, spec, verdict
from trtops.registry.memory import MemoryRegistry
from trtops.release.assemble import config_release, engine_release
from trtops.release.fetch import fetch, fetch_proofs
from trtops.release.keys import KeyRing
from trtops.release.publish import Bundle, publish
from trtops.release.trust import TrustedChannel
from trtops.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.digest import Digest

MIB = 1 << 20
GOAL = 1.5
_BUFFER = 1 << 18


@dataclass
class Timed:
    """What one candidate took, in seconds: wall and CPU by round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def run(self, work: Callable[[], object]) -> None:
        """Run and time it once."""
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)


class Release:
    """An engine of some size in a store, and keys."""

    def __init__(self, folder: Path, size: int) -> None:
        """Make the engine of random bytes, which nothing compresses, and keep it."""
        self.keys = KeyRing()
        self.store = Store(folder / "store")
        source = folder / "engine"
        with source.open("wb") as file:
            for _ in range(size):
                file.write(os.urandom(MIB))
        self.digest = self.store.put_file(source)
        source.unlink()
        self.path = self.store.path(self.digest)
        self.bundle = _bundle(self.keys, self.digest, self.path.stat().st_size)
        self.registry = MemoryRegistry()

    def sha256(self) -> None:
        """The peer."""
        state, buffer = hashlib.sha256(), memoryview(bytearray(_BUFFER))
        with self.path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                state.update(buffer[:count])
        assert state.hexdigest() == self.digest.value

    def sha256sum(self) -> None:
        """The system's tool."""
        subprocess.run(["sha256sum", str(self.path)], check=True, capture_output=True)

    def sign(self) -> None:
        """Publish to an empty registry."""
        self.registry = MemoryRegistry()
        publish(self.registry, self.keys, CHANNEL, self.bundle, now=NOW, has_artifact=has_all)

    def verify(self) -> None:
        """As a service that has just started: nothing is known of the file."""
        store = Store(self.store.folder)
        trusted = fetch(TrustedChannel(self.keys.root(), CHANNEL), self.registry, NOW)
        made = fetch_proofs(trusted, self.registry, "onnxruntime").sidecar
        path = store.path(made.artifact, size=made.size_bytes)
        trusted.accept_artifact("onnxruntime", made.artifact, path.stat().st_size)


def _bundle(keys: KeyRing, digest: Digest, size: int) -> Bundle:
    made = sidecar().model_copy(update={"artifact": digest, "size_bytes": size})
    one = candidate(sidecar=made, builder=keys.signer("builder").key_id)
    allowed = verdict("spec")
    release = engine_release(spec(), allowed, [one], skipped={}, commit="abc", trtops="0.1.0", created=NOW)
    return Bundle(release, config_release("cls", "dev", bundle(keys).config_release.config, created=NOW), allowed,
                  (one,), {})  # fmt: skip


def _spread(values: list[float], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=300, help="of the engine, in MiB")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    print(f"# {os.cpu_count()} CPUs, {platform.machine()}, CPython {platform.python_version()}, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print(f"an engine of {given.size} MiB, {given.rounds} rounds by turns; median (least to most)\n")
    with tempfile.TemporaryDirectory(prefix="trtops-sign-") as folder:
        made = Release(Path(folder), given.size)
        work: dict[str, Callable[[], None]] = {"sha256": made.sha256, "sign": made.sign, "verify": made.verify}
        if shutil.which("sha256sum"):
            work["sha256sum"] = made.sha256sum
        for run in work.values():  # once, so that imports and the page cache are nobody's
            run()
        timed = {name: Timed() for name in work}
        names = list(work)
        for turn in range(given.rounds):
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                timed[name].run(work[name])
    alone = timed["sha256"]
    both = Timed(
        [one + other for one, other in zip(timed["sign"].wall, timed["verify"].wall, strict=True)],
        [one + other for one, other in zip(timed["sign"].cpu, timed["verify"].cpu, strict=True)],
    )
    print("| | ms | times sha256 | CPU, times sha256 |\n|---|---|---|---|")
    for name, one in {**timed, "sign + verify": both}.items():
        wall = _spread([mine / peer for mine, peer in zip(one.wall, alone.wall, strict=True)])
        cpu = _spread([mine / peer for mine, peer in zip(one.cpu, alone.cpu, strict=True)])
        shown = "" if name == "sha256sum" else cpu  # its time is another process's
        print(f"| {name} | {_spread([value * 1000 for value in one.wall], 1)} | {wall} | {shown} |")
    ratio = statistics.median(mine / peer for mine, peer in zip(both.cpu, alone.cpu, strict=True))
    print(f"\nsign + verify: {ratio:.2f} times the CPU time of sha256 alone (goal {GOAL})")


if __name__ == "__main__":
    main()
