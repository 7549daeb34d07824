"""``trtops policy new STAGE/RULE``: a rule with its test, which pass lint and tests and have one file to fill in."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.errors import InputError, StorageError
from trtops.policy.port import STAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

_ID = re.compile(r"(?P<stage>[a-z]+)[/.](?P<name>[a-z][a-z0-9_]*)")

_RULE = """\
# METADATA
# scope: package
# title: {title}
# description: |
#   Say why the rule is there: what goes wrong where it is broken.
# custom:
#   severity: deny
#   since: {since}
#   remediation: |
#     Say what to do about a finding.
package trtops.{stage}.{name}

findings contains finding if {{
	broken
	finding := {{
		"message": sprintf("say what is wrong, with what was found: %s", [input.engine]),
		"path": ["metadata", "name"],
	}}
}}

# FILL IN: when is a document wrong? `trtops policy input ENGINE` prints what a rule sees.
broken if input.engine == "fill-in"

# What of a document matters here, on either side of the boundary: the test beside this file reads it.
examples := {{
	"wrong": [{{"engine": "fill-in"}}],
	"right": [{{"engine": "right"}}],
}}
"""

_TEST = """\
package trtops.{stage}.{name}_test

import data.trtops.{stage}.{name}

test_what_is_wrong_is_found if {{
	count({name}.examples.wrong) > 0
	every document in {name}.examples.wrong {{
		found := {name}.findings with input as document
		count(found) > 0
	}}
}}

test_what_is_right_passes if {{
	count({name}.examples.right) > 0
	every document in {name}.examples.right {{
		found := {name}.findings with input as document
		count(found) == 0
	}}
}}
"""


def new_rule(root: Path, rule: str, *, since: str, title: str | None = None) -> tuple[Path, ...]:
    """Write the folder of a rule; all of it or nothing.

    Args:
        root: the repository's root.
        rule: ``STAGE/NAME``, e.g. ``spec/owner_present``.
        since: version of trtops.
        title: one line; by default made of the name.

    Returns:
        The files that were written.

    Raises:
        InputError: the name is none, or the rule exists.
        StorageError: the disk refused.
    """
    match = _ID.fullmatch(rule)
    if match is None or match["stage"] not in STAGES:
        raise InputError(
            f"{rule!r} is no name of a rule",
            fix=f"give STAGE/NAME: stage is one of {', '.join(STAGES)}, the name in lower case with digits and _",
        )
    folder = root / "policies" / match["stage"] / match["name"]
    if folder.exists():
        raise InputError("the rule exists", where=str(folder), fix="give another name, or edit that one")
    words = match["name"].replace("_", " ")
    parts = {
        "stage": match["stage"],
        "name": match["name"],
        "title": title or words[0].upper() + words[1:],
        "since": since,
    }
    files = {"rule.rego": _RULE.format(**parts), "rule_test.rego": _TEST.format(**parts)}
    try:
        _write(folder, files)
    except OSError as error:
        raise StorageError(
            f"the rule could not be written: {error.strerror}", where=str(folder), fix="nothing was changed; try again"
        ) from error
    return tuple(folder / name for name in files)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, text in files.items():
            with (staging / name).open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        staging.chmod(0o755)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
