"""Every name that the adapters use of TensorRT, against the classes of 8.6, 10.0, 10.16, 11.4 and TensorRT for RTX.

The bindings are NVIDIA's own wheels. Their libraries are stood in for by libraries that export the symbols that the
bindings need to be imported; nothing of them is ever called.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trtops.spec.bindings import format_types

pytestmark = [pytest.mark.network, pytest.mark.service]

BACKEND = Path(__file__).parents[2] / "trtops" / "backend"
READER = Path(__file__).parents[1] / "support" / "trt_api.py"
SHARED = (
    "trt_network.py",
    "trt_session.py",
    "trt_loaded.py",
    "trt_prepared.py",
    "trt_stream.py",
    "trt_bindings.py",
    "trt_graph.py",
    "trt_log.py",
    "trt_plugins.py",
    "trt_cache.py",
    "trt_inspect.py",
    "trt_probe.py",
)
SOURCES = ("tensorrt.py", "cuda_device.py", "pinned.py", "trt_memory.py", *SHARED)
SYMBOLS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
    # of libnvparsers, which 8.6 still names
    "_ZN11nvuffparser15createUffParserEv",
    "_ZN11nvuffparser23shutdownProtobufLibraryEv",
    "_ZN11nvuffparser8FieldMapC1EPKcPKvNS_9FieldTypeEi",
    "_ZN14nvcaffeparser117createCaffeParserEv",
    "_ZN14nvcaffeparser123shutdownProtobufLibraryEv",
)
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser", "nvparsers")


@dataclass(frozen=True)
class Release:
    """A release's wheel. ``newest``: the last CPython that it was made for."""

    wheel: str
    major: int
    newest: tuple[int, int] = (3, 13)


RELEASES = {
    "8.6": Release("tensorrt-bindings==8.6.1", 8, (3, 11)),
    "10.0": Release("tensorrt-cu12-bindings==10.0.1", 10, (3, 12)),
    "10.16": Release("tensorrt-cu12-bindings==10.16.1.11", 10),
    "11.4": Release("tensorrt-cu13-bindings==11.4.0.106", 11),
}
CUDA = ("cuda-bindings==13.0.*", "cuda-pathfinder==1.3.*")


def _cache() -> Path:
    """A folder of this machine, outside of the repository: wheels are fetched once."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "trtops-tests" / f"cp{sys.version_info.major}{sys.version_info.minor}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _unpacked(requirement: str) -> Path:
    folder = _cache() / re.sub(r"[^\w.]", "-", requirement)
    if folder.is_dir():
        return folder
    fetched = folder.with_name(f"{folder.name}.{os.getpid()}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([*command, "--dest", str(fetched), requirement], check=True, timeout=100, env=environment)
    for wheel in fetched.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(fetched)
        wheel.unlink()
    try:
        fetched.rename(folder)
    except OSError:  # another run was first
        shutil.rmtree(fetched)
    return folder


def _stand_ins(major: int, folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        if os.environ.get("CI") == "true":
            pytest.fail("a C compiler is needed")
        pytest.skip("there is no C compiler")
    source = folder / "empty.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in SYMBOLS))
    for name in LIBRARIES:
        soname = f"lib{name}.so.{major}"
        command = [compiler, "-shared", "-fPIC", str(source), "-o", str(folder / soname), f"-Wl,-soname,{soname}"]
        subprocess.run(command, check=True, timeout=60)
    return folder


def _environment(release: str, folder: Path) -> dict[str, str]:
    """Of a process that can import the release's bindings."""
    wanted = RELEASES[release]
    if sys.version_info[:2] > wanted.newest:
        pytest.skip(f"{wanted.wheel} has no wheel for CPython {sys.version_info.major}.{sys.version_info.minor}")
    path = [str(_unpacked(requirement)) for requirement in (wanted.wheel, *CUDA)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "LD_LIBRARY_PATH": str(_stand_ins(wanted.major, folder)),
    }


def _read(release: str, folder: Path, *sources: Path) -> dict[str, Any]:
    environment = _environment(release, folder)
    arguments = ["tensorrt_bindings", "cuda.bindings.runtime", *map(str, sources)]
    return _run(arguments, environment)


def _run(arguments: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    command = [sys.executable, str(READER), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _sources() -> list[Path]:
    return [BACKEND / name for name in SOURCES if (BACKEND / name).exists()]


def test_no_module_that_touches_tensorrt_or_cuda_is_left_out() -> None:
    touching = re.compile(r"(?<![.\w])(?:trt|engine|context|network|config)\.\w+\(|cudart\.\w+\(")
    found = {path.name for path in BACKEND.glob("*.py") if touching.search(path.read_text(encoding="utf-8"))}
    assert found
    assert found <= {*SOURCES, "tensorrt_rtx.py"}


@pytest.mark.parametrize("release", RELEASES)
def test_release_has_every_name_that_the_adapter_uses(release: str, tmp_path: Path) -> None:
    found = _read(release, tmp_path, *_sources())
    assert found["version"].startswith(release)
    assert found["missing"] == []
    assert found["strange"] == []
    assert {
        "Builder.build_serialized_network",
        "ICudaEngine.create_execution_context",
        "IBuilderConfig.set_memory_pool_limit",
        "ITensor.is_shape_tensor",
        "ParserError.desc",
        "cuda.bindings.runtime.cudaMemcpyAsync",
    } <= set(found["required"])


# How the bindings' docstrings call our element types.
TYPES = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "INT8": "int8", "INT64": "int64"}


@pytest.mark.parametrize("release", RELEASES)
def test_memory_formats_have_the_types_that_the_release_says(release: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import tensorrt_bindings as trt; print(trt.TensorFormat.__doc__)"]
    environment = _environment(release, tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100, env=environment)
    ours = format_types("tensorrt", release)
    assert ours is not None
    for name in ("hwc", "hwc8"):
        said = re.search(rf"\b{name.upper()} :(.*?)only available", done.stdout, re.DOTALL)
        assert said, done.stdout
        assert {TYPES[word] for word in re.findall(r"[A-Z]+\d+", said[1])} == set(ours[name])


def test_names_that_are_looked_up_exist_in_some_release(tmp_path: Path) -> None:
    optional: set[str] = set()
    resolved: set[str] = set()
    for release, wanted in RELEASES.items():
        if sys.version_info[:2] <= wanted.newest:
            folder = tmp_path / release
            folder.mkdir()
            found = _read(release, folder, *_sources())
            optional |= set(found["optional"])
            resolved |= set(found["resolved"])
    assert {"STRONGLY_TYPED", "TACTIC_SHARED_MEMORY", "all_creators", "IProgressMonitor"} <= optional
    unknown = optional - resolved
    if sys.version_info[:2] > RELEASES["8.6"].newest:
        unknown -= {"IPluginRegistry.plugin_creator_list"}
    assert unknown == set()


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        ("builder.create_netwrok(0)", "Builder.create_netwrok"),
        ("builder.create_network(0).get_inputs(0)", "INetworkDefinition.get_inputs"),
        ("trt.BuilderFlag.TF23", "BuilderFlag.TF23"),
        ("builder.create_network(flag=1)", "builder.create_network(flag=)"),
        (
            "builder.create_builder_config().set_flag(1, 2, 3)",
            "builder.create_builder_config().set_flag with 3 arguments",
        ),
        ("trt.Runtime(None).deserialize_engine(b'')", "Runtime.deserialize_engine"),
        ("cudart.cudaMemcpyAsink()", "cuda.bindings.runtime.cudaMemcpyAsink"),
    ],
)
def test_wrong_name_is_found(planted: str, kind: str, tmp_path: Path) -> None:
    source = tmp_path / "planted.py"
    source.write_text(f"def build(trt: Any, builder: Any):\n    return {planted}\n")
    assert _read("11.4", tmp_path, source)["missing"] == [kind]


def test_wrong_name_that_is_looked_up_is_found(tmp_path: Path) -> None:
    source = tmp_path / "planted.py"
    source.write_text(
        'def build(trt: Any):\n    return getattr(trt.BuilderFlag, "VERSION_COMPATIBEL", hasattr(trt, "IProgress"))\n'
    )
    found = _read("11.4", tmp_path, source)
    assert set(found["optional"]) - set(found["resolved"]) == {"VERSION_COMPATIBEL", "IProgress"}


def test_parameter_of_unknown_kind_is_found(tmp_path: Path) -> None:
    source = tmp_path / "planted.py"
    source.write_text("def build(thing: Any):\n    return thing.whatever\n")
    assert _read("11.4", tmp_path, source)["strange"] == ["build(thing)"]


def test_tensorrt_for_rtx_has_every_name_that_its_adapter_uses() -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed")
    sources = [BACKEND / name for name in ("tensorrt_rtx.py", *SHARED) if (BACKEND / name).exists()]
    found = _run(["tensorrt_rtx", "-", *map(str, sources)])
    assert found["missing"] == []
    assert found["strange"] == []
    assert {"IBuilderConfig.set_compute_capability", "ComputeCapability"} <= {
        name.removeprefix("tensorrt_rtx.") for name in found["required"]
    }
