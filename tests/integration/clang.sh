#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The other compiler: everything, tests too, builds with clang without a warning.
. "$(dirname "$0")/lib.sh"
no_sanitizer
command -v clang >/dev/null || skip "no clang here"
"$MOOR_CC" --version | grep -qi clang && skip "this build is clang's"
# Kept in the build tree, so that the next run compiles only what changed.
cmake -S "$MOOR_SOURCE_DIR" -B "$MOOR_BUILD_DIR/clang" -G Ninja -DCMAKE_C_COMPILER=clang >"$tmp/log" 2>&1 || fail "$(tail -20 "$tmp/log")"
cmake --build "$MOOR_BUILD_DIR/clang" >"$tmp/log" 2>&1 || fail "$(grep -E 'error|FAILED' -A5 "$tmp/log" | head -60)"
echo ok
