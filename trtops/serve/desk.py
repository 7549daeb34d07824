"""What a server tells of itself and its models, apart from inference: one place for HTTP and gRPC to ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from trtops.errors import InputError, TrtopsError
from trtops.serve import documents

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.executor.port import EngineInfo
    from trtops.serve.inference import Catalogue
    from trtops.serve.measure import Meters
    from trtops.serve.regions import Regions, Registered

    Numbers = Callable[[Callable[[Meters], None]], None]
    """Finds the numbers of all front ends and hands them over, now or later, on the event loop."""


class Health(Protocol):
    """What the front end needs to know of the process that it stands in."""

    def not_ready(self) -> str | None:
        """Why no traffic should come now; None if it may."""

    def status(self) -> dict[str, Any]:
        """The state in detail, as a JSON object."""

    def absent(self, name: str) -> str | None:
        """Why an engine that belongs to this server does not serve; None: it is none of this server's."""

    def absences(self) -> dict[str, str]:
        """Engines of this server that do not serve, each with the reason."""


class Control(Protocol):
    """What control calls do. Called from a thread, since it may take long."""

    def load(self, name: str) -> None:
        """Serve an engine, or look again for a new release of it.

        Raises:
            TrtopsError: it cannot be served.
        """

    def unload(self, name: str) -> None:
        """Serve an engine no more until it is loaded again.

        Raises:
            UnknownModel: it is not served.
        """


class Unsupported(TrtopsError):
    """A part of the protocol that this server does not have; says what there is instead."""


class Forbidden(TrtopsError):
    """A control call on the data port."""


class Desk:
    """Answers questions about the server. Every method is called on the event loop."""

    def __init__(self, catalogue: Catalogue, health: Health, numbers: Numbers, regions: Regions) -> None:
        """Answer from these.

        Args:
            catalogue: what is served.
            health: state of the process.
            numbers: counts of all front ends.
            regions: shared memory that clients registered.
        """
        self.catalogue = catalogue
        self.health = health
        self.numbers = numbers
        self.regions = regions

    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines that are served."""
        return tuple(codec.info for codec in self.catalogue.codecs().values())

    def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        """The repository's index; ``ready``: only what serves now."""
        return documents.repository_index(self.infos(), {} if ready else self.health.absences())

    def metadata(self, name: str, version: str | None) -> dict[str, Any]:
        """A model's metadata.

        Raises:
            UnknownModel: it is not served here.
        """
        return documents.model_metadata(self.catalogue.find(name, version).info)

    def config(self, name: str, version: str | None) -> dict[str, Any]:
        """A model's configuration.

        Raises:
            UnknownModel: it is not served here.
        """
        return documents.model_config(self.catalogue.find(name, version).info)

    def statistics(self, name: str | None, version: str | None, done: Callable[[dict[str, Any]], None]) -> None:
        """Statistics of a model, or of all, over all front ends; ``done`` gets the document now or later.

        Raises:
            UnknownModel: it is not served here.
        """
        infos = self.infos() if name is None else (self.catalogue.find(name, version).info,)

        def write(meters: Meters) -> None:
            meters.fold()
            rows = [documents.model_statistics(info, meters.engine(info.name)) for info in infos]
            done({"model_stats": rows})

        self.numbers(write)

    def registered(self, name: str) -> list[dict[str, Any]]:
        """Shared memory that is registered: all, or the region of this name.

        Raises:
            UnknownRegion: there is none of this name.
        """
        return [_region(about) for about in self.regions.registered(name)]


def _region(about: Registered) -> dict[str, Any]:
    return {"name": about.name, "key": about.key, "offset": about.offset, "byte_size": about.byte_size}


def refuse_changes(what: str, current: dict[str, Any], wanted: dict[str, Any], fix: str) -> None:
    """Settings are fixed at the start: asking for what is so already is fine, anything else is refused by name.

    Raises:
        InputError: there is no such setting.
        Unsupported: it has another value.
    """
    for key, value in wanted.items():
        if key not in current:
            raise InputError(f"no {what} setting '{key:.100}': there are {', '.join(current)}")
        if value is not None and value != current[key]:
            raise Unsupported(f"{what} setting '{key}' is {current[key]!r} and cannot be changed at run time", fix=fix)
