# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts. $root: this checkout; $home: the main checkout when this is one of its git worktrees
# (big things, such as engine environments, live there once); $cache: what builds may reuse.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
home=$root
common=$(git -C "$root" rev-parse --path-format=absolute --git-common-dir 2>/dev/null) || common=
[ "${common##*/}" != .git ] || home=${common%/.git}
cache=${MOOR_CACHE_DIR:-$home/.cache}

say() { echo "${0##*/}: $*" >&2; }
die() {
	say "$*"
	exit 1
}

# uv, or the one that scripts/setup put into the cache.
find_uv() {
	command -v uv || { [ -x "$cache/uv/bin/uv" ] && echo "$cache/uv/bin/uv"; }
}
