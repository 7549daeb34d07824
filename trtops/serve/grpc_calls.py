"""The gRPC calls that run no engine: health, metadata, and, on the control port, Triton's extensions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from trtops.errors import TrtopsError
from trtops.serve import documents
from trtops.serve.controls import CUDA, CUDA_FIX, Settings, refuse_overrides
from trtops.serve.desk import Forbidden, Unsupported, refuse_changes
from trtops.serve.grpc_messages import messages
from trtops.serve.regions import Registered, UnknownRegion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trtops.serve.desk import Control, Desk

    Calls = dict[str, Callable[[Any], Awaitable[Any]]]

CONTROL_CALLS: Final = (
    *("RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings"),
    *(f"{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in ("Status", "Register", "Unregister")),
)


def _message(name: str, document: Any) -> Any:  # noqa: ANN401 - JSON in, a message out
    from google.protobuf import json_format

    return json_format.ParseDict(document, messages()[name](), ignore_unknown_fields=True)


class DataCalls:
    """What clients may ask on the data port."""

    def __init__(self, desk: Desk) -> None:
        """Answer from a desk."""
        self._desk = desk

    def calls(self) -> Calls:
        """Method -> what answers it; control calls are refused."""
        own = {name: getattr(self, name) for name in dir(self) if f"{name}Request" in messages()}
        return {**dict.fromkeys(CONTROL_CALLS, self._forbidden), **own}

    async def _forbidden(self, request: Any) -> Any:  # noqa: ANN401 - a message
        del request
        raise Forbidden(
            "this call belongs to the control port", fix="start the server with --grpc-control-port and call there"
        )

    async def ServerLive(self, _request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Whether the process answers."""
        return messages()["ServerLiveResponse"](live=True)

    async def ServerReady(self, _request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Whether every engine serves."""
        return messages()["ServerReadyResponse"](ready=self._desk.health.not_ready() is None)

    async def ModelReady(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Whether an engine serves."""
        try:
            self._desk.catalogue.find(request.name, request.version or None)
        except TrtopsError:
            return messages()["ModelReadyResponse"](ready=False)
        return messages()["ModelReadyResponse"](ready=True)

    async def ServerMetadata(self, _request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """What this server is."""
        return _message("ServerMetadataResponse", documents.server_metadata())

    async def ModelMetadata(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """An engine's tensors."""
        return _message("ModelMetadataResponse", self._desk.metadata(request.name, request.version or None))

    async def ModelConfig(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """An engine's configuration."""
        return _message("ModelConfigResponse", {"config": self._desk.config(request.name, request.version or None)})

    async def ModelStatistics(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Counts and times of an engine, or of all."""
        found: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._desk.statistics(request.name or None, request.version or None, found.set_result)
        return _message("ModelStatisticsResponse", await found)

    async def RepositoryIndex(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """What is served."""
        if request.repository_name:
            what = f"there is one repository, without a name, and none called '{request.repository_name:.100}'"
            raise Unsupported(what, fix="leave repository_name empty")
        return _message("RepositoryIndexResponse", {"models": self._desk.index(ready=request.ready)})


class ControlCalls(DataCalls):
    """What clients on this host may ask on the control port besides."""

    def __init__(
        self, desk: Desk, control: Control, regions_changed: Callable[[Callable[[], None]], None], settings: Settings
    ) -> None:
        """Answer from a desk.

        Args:
            desk: documents, shared memory, health.
            control: loads and unloads, in a thread.
            regions_changed: tells all front ends of the regions, then calls what it is given.
            settings: of trace and log, as they are.
        """
        super().__init__(desk)
        self._control = control
        self._regions_changed = regions_changed
        self._settings = settings

    async def RepositoryModelLoad(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Serve an engine, or look for a new release of it."""
        refuse_overrides(dict(request.parameters))
        await asyncio.get_running_loop().run_in_executor(None, self._control.load, request.model_name)
        return messages()["RepositoryModelLoadResponse"]()

    async def RepositoryModelUnload(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Serve an engine no more."""
        await asyncio.get_running_loop().run_in_executor(None, self._control.unload, request.model_name)
        return messages()["RepositoryModelUnloadResponse"]()

    async def SystemSharedMemoryStatus(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Regions that are registered."""
        regions = {region["name"]: region for region in self._desk.registered(request.name)}
        return _message("SystemSharedMemoryStatusResponse", {"regions": regions})

    async def SystemSharedMemoryRegister(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Open a region."""
        self._desk.regions.register(Registered(request.name, request.key, request.offset, request.byte_size))
        await self._spread()
        return messages()["SystemSharedMemoryRegisterResponse"]()

    async def SystemSharedMemoryUnregister(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Forget a region, or all."""
        self._desk.regions.unregister(request.name)
        await self._spread()
        return messages()["SystemSharedMemoryUnregisterResponse"]()

    async def _spread(self) -> None:
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._regions_changed(lambda: told.set_result(None))
        await told

    async def CudaSharedMemoryStatus(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """None, ever."""
        if request.name:
            raise UnknownRegion(CUDA, fix=CUDA_FIX)
        return messages()["CudaSharedMemoryStatusResponse"]()

    async def CudaSharedMemoryRegister(self, _request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Refuse."""
        raise Unsupported(CUDA, fix=CUDA_FIX)

    async def CudaSharedMemoryUnregister(self, _request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Nothing is registered, so nothing is left after this."""
        return messages()["CudaSharedMemoryUnregisterResponse"]()

    async def TraceSetting(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Trace settings, as they are."""
        if request.model_name:
            self._desk.catalogue.find(request.model_name, None)
        current = {key: [value] if isinstance(value, str) else value for key, value in self._settings.trace().items()}
        wanted = {key: list(value.value) for key, value in request.settings.items()}
        refuse_changes("trace", current, wanted, "start the server with --otel")
        settings = {key: {"value": value} for key, value in current.items()}
        return _message("TraceSettingResponse", {"settings": settings})

    async def LogSettings(self, request: Any) -> Any:  # noqa: ANN401, N802 - the interface's name
        """Log settings, as they are."""
        current = self._settings.log()
        wanted = {
            key: getattr(value, str(value.WhichOneof("parameter_choice"))) for key, value in request.settings.items()
        }
        refuse_changes("log", current, wanted, "start the server with --log-format or --verbose")
        response = messages()["LogSettingsResponse"]()
        for key, value in current.items():
            kind = "bool" if isinstance(value, bool) else "uint32" if isinstance(value, int) else "string"
            setattr(response.settings[key], f"{kind}_param", value)
        return response
