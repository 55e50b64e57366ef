#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh VERSION|numpy MODULE…: tests of the API on one CPython, or on the first Python here that has numpy.
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
[ -f "$package/_moor.abi3.so" ] || skip "this build has no _moor.abi3.so"
[ "${MOOR_SANITIZE:-}" != thread ] || skip "CPython is not built for the thread sanitizer"

has_numpy() { "$1" -c 'import numpy' 2>/dev/null; }
if [ "$1" = numpy ]; then
	python=
	main=$(git -C "$MOOR_SOURCE_DIR" rev-parse --path-format=absolute --git-common-dir 2>/dev/null || true)
	for candidate in ${MOOR_VENV_VLLM:+"$MOOR_VENV_VLLM/bin/python"} "$MOOR_SOURCE_DIR"/.venv-*/bin/python "${main%/.git}"/.venv-*/bin/python \
		"$(command -v python3 || true)"; do
		if [ -x "$candidate" ] && has_numpy "$candidate"; then
			python=$candidate
			break
		fi
	done
	[ -n "$python" ] || skip "no Python with numpy found"
else
	python=$(find_python "$1")
	[ -n "$python" ] || skip "no CPython $1 found"
fi
[ -z "${MOOR_SAN_PRELOAD:-}" ] || export LD_PRELOAD=$MOOR_SAN_PRELOAD ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$here:$MOOR_BUILD_DIR/python
cd "$here"
exec timeout 300 "$python" -X dev -W error -m unittest -q "${@:2}"
