#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# in_env.sh ENGINE SCRIPT ARGS…: run a script in the environment of an engine; 77 (skipped) where there is none.
# Nothing is installed here: `make test` and scripts/engine-env do that.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=$1
shift
case $name in
vllm) venv=${MOOR_VENV_VLLM:-$here/../../.venv-vllm} ;;
vllm024) venv=${MOOR_VENV_VLLM024:-$here/../../.venv-vllm024} ;;
sglang) venv=${MOOR_VENV_SGLANG:-$here/../../.venv-sglang} ;;
lmdeploy) venv=${MOOR_VENV_LMDEPLOY:-$here/../../.venv-lmdeploy} ;;
*) echo "in_env.sh: unknown engine $name" >&2; exit 2 ;;
esac
if [ ! -x "$venv/bin/python" ]; then
    echo "skipped: no environment of $name (scripts/engine-env $name makes it)"
    exit 77
fi
if [ -n "${MOOR_SANITIZE:-}" ]; then
    echo "skipped: engines are not run under the $MOOR_SANITIZE sanitizer"
    exit 77
fi
unset LD_PRELOAD PYTHONDONTWRITEBYTECODE || true
exec "$venv/bin/python" "$@"
