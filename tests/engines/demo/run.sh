#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The demo (`make demo` comes here once Moor is built). Arguments go to demo.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${MOOR_VENV_VLLM:-}" ]; then
    MOOR_VENV_VLLM=$("$here/../../../scripts/engine-env" vllm)
    export MOOR_VENV_VLLM
fi
unset LD_PRELOAD PYTHONDONTWRITEBYTECODE || true
exec "$MOOR_VENV_VLLM/bin/python" "$here/demo.py" "$@"
