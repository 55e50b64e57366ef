#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make bench` comes here once Moor is built. Arguments go to bench.py; the peers need the vLLM environment, which is made when
# it is not there (BENCH_NO_ENGINE=1: do without).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${BENCH_NO_ENGINE:-}" ] && [ -z "${MOOR_VENV_VLLM:-}" ]; then
	MOOR_VENV_VLLM=$("$here/../scripts/engine-env" vllm) || MOOR_VENV_VLLM=
	export MOOR_VENV_VLLM
fi
unset LD_PRELOAD PYTHONDONTWRITEBYTECODE || true
exec python3 "$here/bench.py" "$@"
