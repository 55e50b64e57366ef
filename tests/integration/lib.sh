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
