#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The demo (`make demo` comes here once Moor is built). Arguments go to demo.py.
# MOOR_PYTHON_VLLM names an engine environment that exists; else one is made in the checkout.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${MOOR_PYTHON_VLLM:-}" ]; then
    MOOR_PYTHON_VLLM=$("$here/../setup.sh" vllm | tail -n 1)
    export MOOR_PYTHON_VLLM
fi
unset LD_PRELOAD PYTHONDONTWRITEBYTECODE || true
exec "$MOOR_PYTHON_VLLM" "$here/demo.py" "$@"
