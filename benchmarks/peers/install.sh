#!/usr/bin/env bash
# Makes the virtual environments of the peers, and says which programs are missing.
#   install.sh [FOLDER]        (default: ~/.cache/trtops/peers)
set -euo pipefail
folder=${1:-$HOME/.cache/trtops/peers}
python=$(command -v python3.11 || true)
[ -n "$python" ] || { echo "python3.11 is needed: nvidia-pytriton 0.7.0 carries its stub for it" >&2; exit 2; }
make() {
    local name=$1
    shift
    [ -x "$folder/$name/bin/python" ] || "$python" -m venv "$folder/$name"
    "$folder/$name/bin/pip" install -q "$@"
}
make mosec mosec==0.9.8 msgspec numpy
make triton nvidia-pytriton==0.7.0
for program in wrk h2load; do
    command -v "$program" >/dev/null || echo "$program is missing: apt-get install wrk nghttp2-client" >&2
done
