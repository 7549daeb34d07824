"""What ``benchmarks/triton_answers.py`` asks over gRPC, of Triton and of this server."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

_ROW = bytes(64)
_Answer = tuple[str, bool, Any]


def _asked(**changes: Any) -> Any:  # noqa: ANN401 - a message
    request = pb.ModelInferRequest(model_name="sum", raw_input_contents=[_ROW])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    for name, value in changes.items():
        if name in {"datatype", "shape", "name"}:
            given = request.inputs[0]
            if name == "shape":
                del given.shape[:]
                given.shape.extend(value)
            else:
                setattr(given, name, value)
        elif name == "raw":
            del request.raw_input_contents[:]
            request.raw_input_contents.extend(value)
        elif name == "typed":
            del request.raw_input_contents[:]
            request.inputs[0].contents.fp32_contents.extend(value)
        elif name == "outputs":
            for output in value:
                request.outputs.add(name=output)
        elif name == "parameters":
            for key, field, content in value:
                setattr(request.parameters[key], field, content)
        elif name == "twice":
            request.inputs.add().CopyFrom(request.inputs[0])
            request.raw_input_contents.append(_ROW)
        else:
            setattr(request, name, value)
    return request


def _region(**changes: Any) -> Any:  # noqa: ANN401 - a message
    return pb.SystemSharedMemoryRegisterRequest(name="q", key="/trtops-nowhere", byte_size=4, **changes)


def _settings(kind: str, **values: Any) -> Any:  # noqa: ANN401 - a message
    request = getattr(pb, f"{kind}Request")()
    for key, value in values.items():
        if kind == "TraceSetting":
            request.settings[key].value.extend(value)
        else:
            request.settings[key].bool_param = value
    return request


CASES: dict[str, tuple[str, Any]] = {
    "live": ("ServerLive", pb.ServerLiveRequest()),
    "ready": ("ServerReady", pb.ServerReadyRequest()),
    "model ready": ("ModelReady", pb.ModelReadyRequest(name="sum")),
    "model ready, of a version": ("ModelReady", pb.ModelReadyRequest(name="sum", version="1")),
    "model ready, unknown": ("ModelReady", pb.ModelReadyRequest(name="no")),
    "server metadata": ("ServerMetadata", pb.ServerMetadataRequest()),
    "model metadata": ("ModelMetadata", pb.ModelMetadataRequest(name="sum")),
    "of a version": ("ModelMetadata", pb.ModelMetadataRequest(name="sum", version="1")),
    "of an unknown version": ("ModelMetadata", pb.ModelMetadataRequest(name="sum", version="9")),
    "of a version that is no number": ("ModelMetadata", pb.ModelMetadataRequest(name="sum", version="x")),
    "of an unknown model": ("ModelMetadata", pb.ModelMetadataRequest(name="no")),
    "of no model": ("ModelMetadata", pb.ModelMetadataRequest()),
    "configuration": ("ModelConfig", pb.ModelConfigRequest(name="sum")),
    "configuration, unknown": ("ModelConfig", pb.ModelConfigRequest(name="no")),
    "repository index": ("RepositoryIndex", pb.RepositoryIndexRequest()),
    "repository index, ready": ("RepositoryIndex", pb.RepositoryIndexRequest(ready=True)),
    "repository index, of a repository": ("RepositoryIndex", pb.RepositoryIndexRequest(repository_name="no")),
    "trace settings": ("TraceSetting", pb.TraceSettingRequest()),
    "trace settings, of an unknown model": ("TraceSetting", pb.TraceSettingRequest(model_name="no")),
    "an unknown trace setting": ("TraceSetting", _settings("TraceSetting", nothing=["1"])),
    "log settings": ("LogSettings", pb.LogSettingsRequest()),
    "an unknown log setting": ("LogSettings", _settings("LogSettings", nothing=True)),
    "shared memory, none": ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()),
    "shared memory, unknown": ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="q")),
    "register what is not": ("SystemSharedMemoryRegister", _region()),
    "unregister what is not": ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name="q")),
    "unregister all": ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest()),
    "CUDA memory, none": ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest()),
    "CUDA memory, unknown": ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(name="q")),
    "unregister CUDA memory": ("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest()),
    "infer": ("ModelInfer", _asked()),
    "infer, named": ("ModelInfer", _asked(id="a")),
    "infer, of a version": ("ModelInfer", _asked(model_version="1")),
    "infer, of an unknown version": ("ModelInfer", _asked(model_version="9")),
    "infer, unknown model": ("ModelInfer", _asked(model_name="no")),
    "one output": ("ModelInfer", _asked(outputs=["y"])),
    "unknown output": ("ModelInfer", _asked(outputs=["z"])),
    "typed contents": ("ModelInfer", _asked(typed=[1.0] * 16)),
    "a priority": ("ModelInfer", _asked(parameters=[("priority", "uint64_param", 1)])),
    "a priority that is signed": ("ModelInfer", _asked(parameters=[("priority", "int64_param", 1)])),
    "a priority in words": ("ModelInfer", _asked(parameters=[("priority", "string_param", "high")])),
    "a timeout": ("ModelInfer", _asked(parameters=[("timeout", "int64_param", 10_000_000)])),
    "an unknown parameter": ("ModelInfer", _asked(parameters=[("foo", "int64_param", 1)])),
    "wrong type": ("ModelInfer", _asked(datatype="INT32")),
    "no type": ("ModelInfer", _asked(datatype="")),
    "wrong shape": ("ModelInfer", _asked(shape=[1, 5], raw=[bytes(20)])),
    "negative shape": ("ModelInfer", _asked(shape=[1, -1])),
    "too many rows": ("ModelInfer", _asked(shape=[17, 16], raw=[bytes(64 * 17)])),
    "no rows": ("ModelInfer", _asked(shape=[0, 16], raw=[b""])),
    "too few bytes": ("ModelInfer", _asked(raw=[bytes(4)])),
    "too many bytes": ("ModelInfer", _asked(raw=[bytes(68)])),
    "too few typed elements": ("ModelInfer", _asked(typed=[1.0])),
    "no contents": ("ModelInfer", _asked(raw=[])),
    "contents of nothing": ("ModelInfer", _asked(raw=[_ROW, _ROW])),
    "no inputs": ("ModelInfer", pb.ModelInferRequest(model_name="sum")),
    "unknown input": ("ModelInfer", _asked(name="q")),
    "an input twice": ("ModelInfer", _asked(twice=True)),
    "a stream": ("ModelStreamInfer", [_asked(id="a"), _asked(id="b")]),
    "a stream of nothing": ("ModelStreamInfer", []),
    "a stream, unknown model": ("ModelStreamInfer", [_asked(model_name="no", id="a")]),
    "a stream, wrong shape, then right": ("ModelStreamInfer", [_asked(shape=[1, 5], id="a"), _asked(id="b")]),
    "a stream, wrong type": ("ModelStreamInfer", [_asked(datatype="INT32", id="a")]),
    "statistics": ("ModelStatistics", pb.ModelStatisticsRequest(name="sum")),
    "statistics of all": ("ModelStatistics", pb.ModelStatisticsRequest()),
    "statistics, unknown": ("ModelStatistics", pb.ModelStatisticsRequest(name="no")),
}
_CLIENT = "INTERNAL says that the server is at fault; it is the request"
_UNKNOWN = "an unknown model is NOT_FOUND, whatever is asked"
ON_PURPOSE: dict[str, str] = {
    "of a version that is no number": "versions are texts here: it is one that is not served",
    "configuration": "fields that say nothing here are left out",
    "statistics, unknown": _UNKNOWN,
    "trace settings, of an unknown model": _UNKNOWN,
    "an unknown trace setting": "a name that is mistyped is told",
    "an unknown log setting": "a name that is mistyped is told",
    "register what is not": _CLIENT,
    "contents of nothing": "bytes that belong to no input are a mistake, and it is told",
}
"""Case -> why the answer differs."""


def ask(channel: grpc.Channel, method: str, request: Any) -> _Answer:  # noqa: ANN401 - a message
    """Code of the status, whether the stream had errors in it, and the answer as JSON."""
    call = getattr(GRPCInferenceServiceStub(channel), method)
    try:
        if isinstance(request, list):
            parts = [_plain(part) for part in call(iter(request))]
            return "OK", any(part["error_message"] for part in parts), sorted(parts, key=_number)
        answer = call(request, timeout=30)
    except grpc.RpcError as error:
        return error.code().name, False, None
    return "OK", False, _plain(answer)


def _plain(message: Any) -> dict[str, Any]:  # noqa: ANN401 - a message
    return dict(
        json_format.MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    )


def _number(part: dict[str, Any]) -> str:
    return str(part.get("infer_response", {}).get("id"))
