#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run_python.sh VERSION ARGS…: run CPython VERSION ("3.12", or "shared"/"static" for how its libpython is linked) with ARGS; exit
# 77 when there is none.
set -u
version=$1
shift
candidates() {
	ls -d "$HOME"/.pyenv/versions/"$1"*/bin/python 2>/dev/null
	type -aP "python$1"
}
works() { "$1" -c 'import sys; sys.exit(sys.implementation.name != "cpython")' 2>/dev/null; }
linked() {
	if [ "$(ldd "$1" 2>/dev/null | grep -c libpython)" != 0 ]; then echo shared; else echo static; fi
}
python=
case $version in
shared | static)
	for v in 3.11 3.10 3.12 3.13; do
		for p in $(candidates $v) /usr/bin/python3; do
			p=$(readlink -f "$p")
			if [ -z "$python" ] && works "$p" && [ "$(linked "$p")" = "$version" ]; then python=$p; fi
		done
	done
	;;
*)
	for p in $(candidates "$version"); do
		if [ -z "$python" ] && works "$p"; then python=$p; fi
	done
	;;
esac
if [ -z "$python" ]; then
	echo "skipped: no CPython $version on this machine"
	exit 77
fi
if [ -n "${MOOR_SAN_PRELOAD:-}" ]; then
	export LD_PRELOAD=$MOOR_SAN_PRELOAD
	export ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 # the interpreter's own
fi
export MOOR_TEST_PYTHON=$python
exec "$python" -B "$@"
