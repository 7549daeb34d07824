"""What an agent keeps on its disk: the highest generation it has seen, and the documents of what it last ran.

One folder an environment, two files a channel: ``ENGINE.CHANNEL.seen.json`` and ``ENGINE.CHANNEL.good.json``; beside
them ``root.json``, ``snapshot.json`` and ``secrets.json``: keys, how far channels have come, generations of secrets.
All are replaced atomically. The documents are the signed envelopes, verified again when they are used; secrets among
them are still sealed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from trtops.digest import Value
from trtops.durable import write_durably
from trtops.errors import StorageError
from trtops.release.trust import Seen

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.release.documents import Channel

log = logging.getLogger(__name__)

V = TypeVar("V", bound=Value)

_MAX_BYTES = 4 << 20


class Good(Value):
    """Registry name -> text of the signed document, for all documents that were verified before the engine ran."""

    documents: dict[str, str]


class Snapshots:
    """Reads and writes an agent's files."""

    def __init__(self, folder: Path) -> None:
        """Keep files in a folder, which is made when something is written."""
        self._folder = folder

    def seen(self, channel: Channel) -> Seen | None:
        """The highest generation that was seen; None on the first start.

        Raises:
            StorageError: there is a file and it cannot be read. It is what stops a rollback attack, so it is never
                taken for absent.
        """
        body = self._read(channel, "seen")
        if body is None:
            return None
        try:
            seen = Seen.model_validate_json(body)
        except ValidationError:
            seen = None
        if seen is None or seen.channel != channel:
            raise StorageError(
                "the record of the highest generation seen is damaged",
                where=str(self._path(channel, "seen")),
                fix="find out why; remove the file to trust the registry's next pointer as on a first start",
            )
        return seen

    def keep_seen(self, seen: Seen) -> None:
        """Write down a generation.

        Raises:
            StorageError: it could not be written; the old file is as it was.
        """
        write_durably(self._path(seen.channel, "seen"), [seen.canonical_bytes()])

    def good(self, channel: Channel) -> dict[str, bytes] | None:
        """The documents of what ran last; None if there are none or they cannot be read, which is logged."""
        try:
            body = self._read(channel, "good")
            if body is not None:
                documents = Good.model_validate_json(body).documents
                return {name: text.encode() for name, text in documents.items()}
        except (ValidationError, StorageError) as error:
            log.warning("the last-known-good of %s cannot be read: %s", channel, error)
        return None

    def keep_good(self, channel: Channel, documents: dict[str, bytes]) -> None:
        """Write down the documents of what runs.

        Raises:
            StorageError: they could not be written; the old file is as it was.
        """
        good = Good(documents={name: body.decode() for name, body in documents.items()})
        write_durably(self._path(channel, "good"), [good.canonical_bytes()])

    def read(self, environment: str, name: str, kind: type[V]) -> V | None:
        """A value that is kept for a whole environment; None if there is none.

        Raises:
            StorageError: there is a file and it cannot be read: it stops attacks, so it is never taken for absent.
        """
        path = self._folder / environment / f"{name}.json"
        body = _read(path)
        try:
            return None if body is None else kind.model_validate_json(body)
        except ValidationError:
            fix = "find out why; remove the file to start as on a first start"
            raise StorageError("what was kept here is damaged", where=str(path), fix=fix) from None

    def keep(self, environment: str, name: str, value: Value) -> None:
        """Keep a value for a whole environment.

        Raises:
            StorageError: it could not be written; the old file is as it was.
        """
        write_durably(self._folder / environment / f"{name}.json", [value.canonical_bytes()])

    def _path(self, channel: Channel, kind: str) -> Path:
        return self._folder / channel.environment / f"{channel.engine}.{channel.name}.{kind}.json"

    def _read(self, channel: Channel, kind: str) -> bytes | None:
        return _read(self._path(channel, kind))


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if len(body) > _MAX_BYTES:
        raise StorageError(f"has more than {_MAX_BYTES} bytes", where=str(path))
    return body
