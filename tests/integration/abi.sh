#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# libmoor's ABI, down to the members of every public struct, is the recorded one (abi/libmoor.abi). A change that is meant
# to be: make abi-dump, and the diff of the dump is what a reviewer reads.
. "$(dirname "$0")/lib.sh"
no_sanitizer
command -v abidiff >/dev/null || skip "no abidiff here (abigail-tools)"
"$MOOR_CC" --version | grep -qi 'clang' && skip "the recorded ABI is gcc's, this build is clang's"
[ "$(uname -m)" = x86_64 ] || skip "the recorded ABI is x86_64's"
[ -f "$MOOR_SOURCE_DIR/abi/libmoor.abi" ] || fail "no abi/libmoor.abi: make abi-dump"
"$(dirname "$0")/abi_dump.sh" "$package/libmoor.so.1" "$tmp/now.abi"
grep -q "name='moor_api'" "$tmp/now.abi" || skip "the library has no debug information: there is nothing to compare"
abidiff "$MOOR_SOURCE_DIR/abi/libmoor.abi" "$tmp/now.abi" || fail "the ABI changed; if it is meant to: make abi-dump"
echo ok
