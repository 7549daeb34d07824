"""TensorRT for RTX: builds an engine for a compute capability on any machine, loads it where such a GPU is.

Equal inputs give equal bytes. Kernels are compiled when an engine is loaded, so the build times nothing and needs no
device. Versions of the library name the compute capabilities that they know (``SM75`` … ``SM120``); 9.0 is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtops.backend import cuda_device
from trtops.backend.port import BackendStatus, BuildResult
from trtops.backend.tensorrt import imported
from trtops.backend.trt_network import FORMAT, build_engine, precision_refusal
from trtops.backend.trt_plugins import library_digests
from trtops.backend.versions import satisfies
from trtops.device import Device
from trtops.errors import BuildFailed, NotLoadable, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtops.backend.port import BuildRequest, Progress, Session, Sidecar
    from trtops.spec.engine import Precision, Target

INSTALL = "pip install 'trtops[rtx]'"


class TensorRtRtxBackend:
    """Builds engines for one compute capability."""

    name = "tensorrt_rtx"

    def status(self, target: Target) -> BackendStatus:
        """Tell whether the library is here, knows the target's compute capability, and has such a GPU."""
        version = None
        try:
            trt = imported(self.name)
            version = str(trt.__version__)
        except Unavailable as error:
            return self._answer(None, cannot_build=f"{error.what}: {INSTALL}")
        if not satisfies(version, target.version):
            what = f"the target asks for TensorRT for RTX {target.version}, here is {version}"
            return self._answer(version, cannot_build=what)
        try:
            compute_capability(trt, target)
        except BuildFailed as error:
            return self._answer(version, cannot_build=f"{error.what}: {error.fix}")
        try:
            here = self.device()
        except Unavailable as error:
            return self._answer(version, cannot_load=f"builds here, but cannot load: {error.what}")
        wanted = _capability(target)
        if here.compute_capability != wanted:
            what = f"builds here, but cannot load: the engine is for compute capability {wanted}, here is {here.label}"
            return self._answer(version, cannot_load=what)
        return self._answer(version)

    def _answer(
        self, version: str | None, *, cannot_build: str | None = None, cannot_load: str | None = None
    ) -> BackendStatus:
        return BackendStatus(
            backend=self.name,
            version=version,
            can_build=cannot_build is None,
            can_load=cannot_build is None and cannot_load is None,
            reason=cannot_build or cannot_load,
        )

    def device(self) -> Device:
        """The GPU that CUDA calls number 0 here.

        Raises:
            Unavailable: there is none.
        """
        return cuda_device.detect()

    def refusal(self, target: Target, precision: Precision) -> str | None:
        """Why a precision cannot be built; None if it can."""
        del target
        return precision_refusal("TensorRT for RTX", precision, None)

    def build(self, request: BuildRequest, progress: Callable[[Progress], None]) -> BuildResult:
        """Build an engine for the target's compute capability.

        Raises:
            BuildFailed: with the library's reason in plain words.
        """
        if reason := self.refusal(request.target, request.precision):
            raise BuildFailed(reason, fix="choose another precision.mode, or leave this target out")
        if request.builder.hardware_compatible:
            what = "TensorRT for RTX has no hardware compatibility"
            raise BuildFailed(what, where="builder.hardware_compatible", fix="take it out; add a target for each GPU")
        try:
            trt = imported(self.name)
        except Unavailable as error:
            raise BuildFailed(error.what, fix=INSTALL) from error
        wanted = compute_capability(trt, request.target)

        def configure(config: Any) -> None:  # noqa: ANN401 - TensorRT has no types
            config.num_compute_capabilities = 1
            if not config.set_compute_capability(wanted, 0):
                raise BuildFailed(f"TensorRT for RTX {trt.__version__} refuses {wanted}")

        made = build_engine(trt, request, progress, configure)
        device = Device(kind="gpu", name="any GPU", compute_capability=_capability(request.target))
        return BuildResult(
            backend_version=str(trt.__version__),
            device=device,
            inputs=made.inputs,
            outputs=made.outputs,
            format=FORMAT,
            extra=library_digests(request.builder.plugins),
            seconds=made.seconds,
        )

    def load(self, artifact: Path, sidecar: Sidecar) -> Session:
        """Load an engine where its GPU is.

        Raises:
            NotLoadable: another backend's, version's or compute capability's engine; the library or a GPU is not here.
        """
        if sidecar.backend != self.name:
            raise NotLoadable(f"the engine is for {sidecar.backend}, this is {self.name}", where=str(artifact))
        try:
            trt, here = imported(self.name), self.device()
        except Unavailable as error:
            raise NotLoadable(error.what, where=str(artifact), fix=error.fix or INSTALL) from error
        if sidecar.backend_version != trt.__version__:
            what = f"the engine was built by TensorRT for RTX {sidecar.backend_version}, here is {trt.__version__}"
            raise NotLoadable(what, where=str(artifact), fix="build it again with this version")
        if sidecar.device.compute_capability != here.compute_capability:
            what = (
                f"the engine was built for compute capability {sidecar.device.compute_capability}, here is {here.label}"
            )
            raise NotLoadable(what, where=str(artifact), fix="add a target for this GPU")
        from trtops.backend.trt_session import TensorRtSession

        return TensorRtSession(trt, artifact, sidecar)


def _capability(target: Target) -> str | None:
    return target.gpu.compute_capability if target.gpu else target.compute_capability


def compute_capability(trt: Any, target: Target) -> Any:  # noqa: ANN401 - TensorRT has no types
    """The library's name of the target's compute capability.

    Raises:
        BuildFailed: the target names none, or one that this version does not know.
    """
    wanted = _capability(target)
    known = sorted(name for name in trt.ComputeCapability.__members__ if name.startswith("SM"))
    listed = ", ".join(f"{name[2:-1]}.{name[-1]}" for name in sorted(known, key=lambda name: int(name[2:])))
    if wanted is None:
        raise BuildFailed("the target names no compute capability", fix=f"set compute_capability to one of {listed}")
    name = f"SM{wanted.replace('.', '')}"
    if name not in known:
        what = f"TensorRT for RTX {trt.__version__} builds nothing for compute capability {wanted}"
        raise BuildFailed(what, fix=f"it knows {listed}; use backend tensorrt for data centre GPUs")
    return trt.ComputeCapability.__members__[name]
