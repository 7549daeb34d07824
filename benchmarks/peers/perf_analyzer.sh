#!/usr/bin/env bash
# Runs NVIDIA's perf_analyzer 2.60 of the package index, also where the C library is older than the 2.38 that it needs:
# then with Debian 13's, unpacked into a folder and used by this one program.
#   perf_analyzer.sh [perf_analyzer's arguments]        (folder: $TRTOPS_PEERS or ~/.cache/trtops/peers)
set -euo pipefail
folder=${TRTOPS_PEERS:-$HOME/.cache/trtops/peers}/perf_analyzer
program=$folder/wheel/perf_analyzer/bin/perf_analyzer
fetch() {
    mkdir -p "$folder/download"
    python3 -m pip download -q --no-deps --only-binary=:all: -d "$folder/download" "$@"
}
if [ ! -x "$program" ]; then
    fetch --platform manylinux_2_38_x86_64 --python-version 3.11 perf-analyzer==2.60.0
    fetch --platform manylinux2014_x86_64 nvidia-cuda-runtime-cu12==12.9.79 # it opens libcudart for any shared memory
    python3 -m zipfile -e "$folder"/download/perf_analyzer-*.whl "$folder/wheel"
    python3 -m zipfile -e "$folder"/download/nvidia_cuda_runtime_cu12-*.whl "$folder/cuda"
    ln -sf nvidia/cuda_runtime/lib/libcudart.so.12 "$folder/cuda/libcudart.so"
    chmod +x "$program"
fi
if [ "$(printf '%s\n' 2.38 "$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)" | sort -V | head -1)" = 2.38 ]; then
    LD_LIBRARY_PATH=$folder/cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$program" "$@"
fi
libraries=$folder/debian/usr/lib/x86_64-linux-gnu
if [ ! -x "$libraries/ld-linux-x86-64.so.2" ]; then
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    source=/etc/apt/sources.list.d/debian.sources
    [ -r "$source" ] || { echo "glibc is older than 2.38, and there is no $source to take Debian 13's from" >&2; exit 2; }
    mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$folder/apt/sources"
    sed "/^Suites:/s/$codename/trixie/g" "$source" >"$folder/apt/sources/debian.sources"
    options=(-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$folder/apt/sources"
        -o Dir::State::Lists="$folder/apt/lists" -o Dir::Cache="$folder/apt"
        -o APT::Sandbox::User="$(id -un)")
    apt-get "${options[@]}" -qq update
    (cd "$folder/download" && apt-get "${options[@]}" -qq download libc6 libstdc++6 libgcc-s1)
    for package in "$folder"/download/*.deb; do dpkg-deb -x "$package" "$folder/debian"; done
fi
exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries:$folder/cuda:/lib/x86_64-linux-gnu" "$program" "$@"
