"""One OPA bundle of everything that judges: deterministic bytes, revision = digest of the policy set.

Services and CI pin the revision, which every verdict names. The bundle holds the question module, so a server that has
it answers ``POST /v1/data/trtops/gate/<stage>`` at once, and ``batch_<stage>`` for many documents.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from typing import TYPE_CHECKING

from trtops.policy.port import STAGES, question

if TYPE_CHECKING:
    from trtops.policy.port import PolicySet
    from trtops.policy.verdict import Stage

QUESTION_PATH = "policies/gate.rego"


def modules(policies: PolicySet, *stages: Stage) -> dict[str, str]:
    """Path -> text of every Rego file that judges these stages (all that have rules by default), the question too."""
    asked = {stage: tuple(rule for rule in policies.rules if rule.stage == stage) for stage in (stages or STAGES)}
    asked = {stage: rules for stage, rules in asked.items() if rules}
    files = {file.path: file.text for file in policies.libraries}
    files |= {rule.file.path: rule.file.text for rules in asked.values() for rule in rules}
    return {**files, QUESTION_PATH: question(asked)}


def bundle(policies: PolicySet) -> bytes:
    """The bundle: ``tar.gz`` with ``.manifest``, ``data.json`` and the Rego files.

    Law: equal policy sets give equal bytes, on every machine.
    """
    manifest = {
        "revision": str(policies.digest),
        "rego_version": 1,
        "roots": ["trtops", *sorted(policies.data)],
    }
    files = {".manifest": _json(manifest), "data.json": _json(dict(policies.data))}
    files |= {path: text.encode() for path, text in modules(policies).items()}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(files):
            entry = tarfile.TarInfo(f"/{path}")
            entry.size = len(files[path])
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(files[path]))
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=9, mtime=0) as stream:
        stream.write(raw.getvalue())
    return packed.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
