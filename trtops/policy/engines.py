"""Which engine judges: the choice, and that an environment which demands OPA gets it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtops.errors import Undecided
from trtops.policy.governance import ENFORCEMENT_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.policy.port import PolicyEngine, PolicySet

Choice = Literal["auto", "opa", "embedded"]

_INSTALL = "install OPA 1.x, its binary on PATH, and `pip install 'trtops[opa]'`; or give a server with --opa-url"


def open_engine(
    policies: PolicySet,
    *,
    environment: str,
    choice: Choice = "auto",
    opa_url: str | None = None,
    opa_token: str | None = None,
    opa_ca: Path | None = None,
    timeout: float = 30.0,
    environ: Mapping[str, str] = os.environ,
) -> PolicyEngine:
    """Make the engine that judges a policy set. The caller closes it.

    Args:
        policies: what judges.
        environment: whose demand counts (``governance/enforcement.yaml``).
        choice: ``auto`` takes OPA when it is there: a URL is given, or the binary and its client are installed.
        opa_url: a server that runs already.
        opa_token: its bearer token.
        opa_ca: file of the authority that signed its certificate.
        timeout: seconds that OPA's start, and one request, may take.
        environ: where ``PATH`` and ``TRTOPS_OPA`` (a path of the binary) are looked up.

    Raises:
        Undecided: the environment demands OPA, or it was chosen, and it is not there.
    """
    demanded = policies.enforcement.environment(environment).engine == "opa"
    if demanded and choice == "embedded":
        raise Undecided(
            f"the environment {environment!r} demands the engine opa, not the embedded one",
            where=ENFORCEMENT_FILE,
            fix="leave out --engine embedded, or check for the environment local",
        )
    if choice == "embedded":
        from trtops.policy.embedded import EmbeddedEngine

        return EmbeddedEngine(policies)
    if opa_url is not None:
        from trtops.policy.opa import connect

        return connect(policies, opa_url, token=opa_token, ca=opa_ca, timeout=timeout)
    binary = find_opa(environ)
    if binary is not None and importlib.util.find_spec("opa_client") is not None:
        from trtops.policy.opa import start

        return start(policies, binary, timeout=timeout)
    missing = "the opa binary is not on PATH" if binary is None else "opa-python-client is not installed"
    if demanded or choice == "opa":
        reason = f"the environment {environment!r} demands it" if demanded else "it was asked for"
        raise Undecided(f"the engine opa is not there: {missing}, and {reason}", fix=_INSTALL)
    from trtops.policy.embedded import EmbeddedEngine

    return EmbeddedEngine(policies)


def find_opa(environ: Mapping[str, str]) -> Path | None:
    """The ``opa`` binary: ``TRTOPS_OPA`` if it is set, else the first on ``PATH``; None if there is none.

    Raises:
        Undecided: ``TRTOPS_OPA`` names no program.
    """
    given = environ.get("TRTOPS_OPA")
    if given:
        if not os.access(given, os.X_OK) or not Path(given).is_file():
            raise Undecided("TRTOPS_OPA names no program", where=given, fix="give the path of the opa binary")
        return Path(given).absolute()
    found = shutil.which("opa", path=environ.get("PATH", os.defpath))
    return Path(found) if found else None
