# SPDX-License-Identifier: Apache-2.0
# Sourced by the shell tests here: fail, skip, and a folder $tmp that goes away.
set -euo pipefail
fail() {
	echo "FAIL: $*"
	exit 1
}
skip() {
	echo "skipped: $*"
	exit 77
}
no_sanitizer() { [ -z "${MOOR_SANITIZE:-}" ] || skip "a sanitizer's runtime changes what this test looks at"; }
package=$MOOR_BUILD_DIR/python/moor
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# find_python VERSION: a CPython X.Y on the PATH or of pyenv, or nothing.
find_python() {
	local candidate
	for candidate in "$(command -v "python$1" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python "/usr/bin/python$1"; do
		if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
			"$candidate" -c 'import sys; print(sys.executable)'
			return 0
		fi
	done
}
