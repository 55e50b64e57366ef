#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The demo (`make demo` comes here once Moor is built): run.sh [ENGINE [ARGS…]], the arguments go to demo.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
engine=${1:-vllm}
[ $# -eq 0 ] || shift
venv=$("$here/../../../scripts/engine-env" "$engine")
export "MOOR_VENV_$(echo "$engine" | tr a-z A-Z)=$venv"
unset LD_PRELOAD PYTHONDONTWRITEBYTECODE || true
exec "$venv/bin/python" "$here/demo.py" --engine "$engine" "$@"
