#!/usr/bin/env bash
# Runs the tritonserver (2.51, CPU, Python backend) that the wheel nvidia-pytriton 0.7.0 carries, on loopback.
#   triton.sh VENV MODELS HTTP_PORT GRPC_PORT [more flags]
# VENV: CPython 3.11 with nvidia-pytriton==0.7.0 (benchmarks/peers/install.sh makes it).
set -euo pipefail
[ $# -ge 4 ] || { sed -n '2,5p' "$0" >&2; exit 2; }
venv=$(realpath "$1") models=$(realpath "$2") http=$3 grpc=$4
shift 4
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
home=$site/pytriton/tritonserver
mkdir -p "$venv/backends/python"
cp -rn "$home"/backends/python/. "$venv/backends/python/"
cp -n "$home/python_backend_stubs/3.11/triton_python_backend_stub" "$venv/backends/python/"
export PATH=$venv/bin:$PATH PYTHONPATH=$site LD_LIBRARY_PATH=$site/nvidia_pytriton.libs:${LD_LIBRARY_PATH:-}
exec "$home/bin/tritonserver" --model-repository="$models" --backend-directory="$venv/backends" \
    --cache-directory="$home/caches" --allow-metrics=false --http-address=127.0.0.1 --http-port="$http" \
    --grpc-address=127.0.0.1 --grpc-port="$grpc" "$@"
