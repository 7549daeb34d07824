"""TensorRT 8.6, 10 and 11 on a GPU.

An engine is of one version and one GPU: both are compared with the sidecar before TensorRT sees the bytes.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops.backend import cuda_device
from trtops.backend.port import BackendStatus, BuildResult
from trtops.backend.trt_bindings import other_format
from trtops.backend.trt_cache import merge
from trtops.backend.trt_inspect import inspect_engine
from trtops.backend.trt_log import logger, meaning
from trtops.backend.trt_network import FORMAT, build_engine, precision_refusal
from trtops.backend.trt_plugins import library_digests
from trtops.backend.versions import satisfies
from trtops.errors import BuildFailed, NotLoadable, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.backend.inspect import Inspection
    from trtops.backend.port import BuildRequest, Progress, Session, Sidecar
    from trtops.backend.trt_network import Made
    from trtops.device import Device
    from trtops.spec.engine import Builder, Precision, Target

_FREE = "free memory on the device"
INSTALL = "pip install 'trtops[tensorrt]' on a machine with an NVIDIA GPU and its driver"
# cuBLAS and cuDNN are optional libraries of 8.6 that later versions no longer use: engines are built without them, so
# that the same kernels are tried wherever the build runs.
_TACTICS_8 = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
_AMPERE = 8


def imported(module: str) -> Any:  # noqa: ANN401 - TensorRT has no types
    """Import one of TensorRT's modules.

    Raises:
        Unavailable: it is not installed, or its libraries cannot be loaded; says which.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise Unavailable(f"{module} is not installed") from error
    except Exception as error:
        # The loaders on the package index raise many types when their libraries are out of reach.
        raise Unavailable(f"{module} is installed but cannot be imported: {error}") from error


class TensorRtBackend:
    """Builds and loads engines on the GPU of this machine."""

    name = "tensorrt"

    def status(self, target: Target) -> BackendStatus:
        """Tell whether TensorRT and the target's GPU are here."""
        version = None
        try:
            version = str(imported(self.name).__version__)
            reason = self._mismatch(target, version, self.device())
        except Unavailable as error:
            fix = error.fix or INSTALL
            reason = f"{error.what}: {fix}"
        able = reason is None
        return BackendStatus(backend=self.name, version=version, can_build=able, can_load=able, reason=reason)

    def device(self) -> Device:
        """The GPU that CUDA calls number 0 here.

        Raises:
            Unavailable: there is none.
        """
        return cuda_device.detect()

    def refusal(self, target: Target, precision: Precision) -> str | None:
        """Why a precision cannot be built; None if it can."""
        try:
            version = str(imported(self.name).__version__)
        except Unavailable:
            version = target.version or ""
        return precision_refusal("TensorRT", precision, version)

    def build(self, request: BuildRequest, progress: Callable[[Progress], None]) -> BuildResult:
        """Build an engine.

        Raises:
            BuildFailed: with TensorRT's reason in plain words.
        """
        if reason := self.refusal(request.target, request.precision):
            raise BuildFailed(reason, fix="choose another precision.mode, or leave this target out")
        status = self.status(request.target)
        if not status.can_build:
            raise BuildFailed(str(status.reason), fix="build it on a machine that has both")
        trt = imported(self.name)
        if reason := _no_room():
            raise BuildFailed(reason, fix=_FREE)
        notes = ["built with no cuBLAS and cuDNN kernels"] if _major(trt) == 8 else []  # noqa: PLR2004 - a version
        made = build_engine(trt, request, progress, lambda config: _configure(trt, config, request.builder))
        _check_formats(trt, made, Path(request.output))
        extra = {
            name: "true"
            for name, wanted in (
                ("version_compatible", request.builder.version_compatible),
                ("hardware_compatible", request.builder.hardware_compatible),
            )
            if wanted
        }
        return BuildResult(
            backend_version=str(trt.__version__),
            device=self.device(),
            inputs=made.inputs,
            outputs=made.outputs,
            format=FORMAT,
            notes=tuple(notes),
            extra=extra | library_digests(request.builder.plugins),
            seconds=made.seconds,
        )

    def merge_timings(self, one: bytes, other: bytes) -> bytes:
        """Timings of two caches; where both timed a kernel, those of the first.

        Raises:
            BuildFailed: TensorRT does not merge them; says why.
            Unavailable: TensorRT is not here.
        """
        return merge(imported(self.name), one, other)

    def load(self, artifact: Path, sidecar: Sidecar) -> Session:
        """Load an engine.

        Raises:
            NotLoadable: another backend's, version's or GPU's engine; TensorRT is not here or refuses it.
        """
        from trtops.backend.trt_session import TensorRtSession

        return TensorRtSession(self._checked(artifact, sidecar), artifact, sidecar)

    def inspect(self, artifact: Path, sidecar: Sidecar) -> Inspection:
        """Look into an engine.

        Raises:
            NotLoadable: as :meth:`load`.
        """
        trt = self._checked(artifact, sidecar)
        if reason := _no_room():
            raise NotLoadable(reason, where=str(artifact), fix=_FREE)
        return inspect_engine(trt, artifact, sidecar)

    def _checked(self, artifact: Path, sidecar: Sidecar) -> Any:  # noqa: ANN401 - TensorRT has no types
        """The library, if it may see the engine's bytes."""
        if sidecar.backend != self.name:
            raise NotLoadable(f"the engine is for {sidecar.backend}, this is {self.name}", where=str(artifact))
        try:
            trt, here = imported(self.name), self.device()
        except Unavailable as error:
            raise NotLoadable(error.what, where=str(artifact), fix=error.fix or INSTALL) from error
        if reason := _other_version(sidecar, str(trt.__version__)) or _other_device(sidecar, here):
            raise NotLoadable(reason, where=str(artifact), fix="build it for this version and this device")
        return trt

    @staticmethod
    def _mismatch(target: Target, version: str, here: Device) -> str | None:
        """What of a target is not here."""
        if not satisfies(version, target.version):
            return f"the target asks for TensorRT {target.version}, here is {version}"
        gpu = target.gpu
        capability = gpu.compute_capability if gpu else target.compute_capability
        if capability is not None and capability != here.compute_capability:
            return f"the target asks for compute capability {capability}, here is {here.label}"
        if gpu is not None and (gpu.name.lower() not in here.name.lower() or gpu.mig != here.mig):
            wanted = gpu.name + (f", {gpu.mig}" if gpu.mig else "")
            return f"the target asks for {wanted}, here is {here.label}"
        return None


def _no_room() -> str | None:
    """Why TensorRT must not be called now; None if it may."""
    try:
        cuda_device.enter(cuda_device.runtime())
    except cuda_device.CudaError as error:
        return f"the device cannot be used: {error}"
    except Unavailable:
        return None  # which the caller has looked at: TensorRT tells what it misses
    return None


def _check_formats(trt: Any, made: Made, path: Path) -> None:  # noqa: ANN401 - TensorRT has no types
    """See whether the engine took the formats that it was given; costs nothing where all are linear.

    Raises:
        BuildFailed: it did not.
    """
    bindings = (*made.inputs, *made.outputs)
    if all(info.format == "linear" for info in bindings):
        return
    log = logger(trt)
    runtime = trt.Runtime(log)
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    reason = f"TensorRT cannot load it: {meaning(log.errors)[0]}" if engine is None else other_format(engine, bindings)
    if reason:
        raise BuildFailed(reason, where="bindings", fix="set `format: linear` for it", log="\n".join(log.errors))


def _configure(trt: Any, config: Any, builder: Builder) -> None:  # noqa: ANN401 - TensorRT has no types
    if _major(trt) == 8:  # noqa: PLR2004 - a version
        sources = 0
        for name in _TACTICS_8:
            sources |= 1 << int(getattr(trt.TacticSource, name))
        if not config.set_tactic_sources(sources):
            raise BuildFailed(f"TensorRT {trt.__version__} refuses the tactic sources {', '.join(_TACTICS_8)}")
        # Later versions let every context use every profile; 8.6 has to be asked.
        config.set_preview_feature(getattr(trt.PreviewFeature, "PROFILE_SHARING_0806"), True)  # noqa: B009, FBT003
    if builder.hardware_compatible:
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS


def _major(trt: Any) -> int:  # noqa: ANN401 - TensorRT has no types
    return int(str(trt.__version__).partition(".")[0])


def _other_version(sidecar: Sidecar, here: str) -> str | None:
    built = sidecar.backend_version
    if here == built:
        return None
    if sidecar.extra.get("version_compatible") and here.partition(".")[0] == built.partition(".")[0]:
        return None
    return f"the engine was built by TensorRT {built}, here is {here}"


def _other_device(sidecar: Sidecar, here: Device) -> str | None:
    built = sidecar.device
    if sidecar.extra.get("hardware_compatible") and int((here.compute_capability or "0").partition(".")[0]) >= _AMPERE:
        return None
    same = ("name", "compute_capability", "sm_count", "mig")
    if all(getattr(built, field) == getattr(here, field) for field in same):
        return None
    return f"the engine was built for {built.label}, here is {here.label}"
