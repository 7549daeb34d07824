"""``governance/recipients.yaml``: who may open the sealed secrets of which service, in which environment.

::

    apiVersion: trtops/v1
    kind: Recipients
    environments:
      prod:
        ppocr-cls: [age1…, age1…]     # the machines of this service
        "*": [age1…]                  # every other engine of this environment
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from trtops.digest import Value
from trtops.document import load_document
from trtops.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

FILE = "governance/recipients.yaml"
ALL = "*"

Recipient = Annotated[str, StringConstraints(pattern=r"^age1[0-9a-z]{20,100}$")]
_Recipients = Annotated[tuple[Recipient, ...], Field(min_length=1, max_length=64)]


class Recipients(Value):
    """Environment -> engine, or ``*`` for every other -> age public keys."""

    apiVersion: Literal["trtops/v1"]  # noqa: N815 - the field's name in every document of this kind
    kind: Literal["Recipients"]
    environments: dict[str, dict[str, _Recipients]]

    def of(self, engine: str, environment: str) -> tuple[str, ...]:
        """Who may open an engine's secrets, sorted; nobody is named where the environment has no line for it."""
        engines = self.environments.get(environment, {})
        return tuple(sorted(set(engines.get(engine) or engines.get(ALL) or ())))


def load_recipients(root: Path) -> Recipients | None:
    """Read the file of a repository; None where it has none.

    Raises:
        InputError: it is wrong; names the line.
        StorageError: it cannot be read.
    """
    path = root / FILE
    if not path.exists():
        return None
    document = load_document(path, name=FILE)
    try:
        return Recipients.model_validate_json(json.dumps(document.data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = first["loc"]
        what = f"`{'.'.join(map(str, at))}`: {first['msg']}"
        # Without the text: a private key may have been pasted by mistake.
        raise InputError(what, where=document.locate(at), fix="write age public keys (age1…) by engine") from None
