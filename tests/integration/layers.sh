#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The folders are the architecture: plugin → hooks → allocator → abi, client → abi, and the Python side and the tools know
# the public header only. An include that points back fails here. The client also takes the lowest modules, which hold nothing
# of the server: error, heap, dirs, interrupt, living, locks, memfd.
. "$(dirname "$0")/lib.sh"
cd "$MOOR_SOURCE_DIR"

# The folder of each project header that the C files of $1 include ("abi/include" for the public one).
folders() {
	grep -rhoE --include='*.[ch]' '#include ["<](\.\./)*(moor/|abi/|allocator/|hooks/engine/|hooks/|plugin/python/|plugin/|client/|tools/)' "$@" |
		sed -E 's/.*["<]//; s,(\.\./)*,,; s,/$,,' | sort -u
}
bad=
layer() {
	local what=$1 allowed=$2 used
	shift 2
	for used in $(folders "$@"); do
		[[ " $allowed " == *" $used "* ]] || bad+="$what includes $used/…
"
	done
}
layer abi/ "moor abi" abi
layer allocator/ "moor abi allocator" allocator
layer hooks/ "moor abi allocator hooks" hooks/*.[ch]
layer plugin/ "moor abi allocator hooks plugin client" plugin/*.[ch]
layer client/ "moor abi allocator client" client
foreign=$(grep -rnE --include='*.[ch]' '#include "(\.\./)+allocator/' client | grep -vE 'allocator/(error|heap|dirs|interrupt|living|locks|memfd)\.h"' || true)
[ -z "$foreign" ] || bad+="client/ includes what is the server's: $foreign
"
layer hooks/engine/ "moor hooks/engine plugin/python" hooks/engine
layer plugin/python/ "moor hooks/engine plugin/python" plugin/python
layer tools/ "moor tools" tools
[ -z "$bad" ] || fail "$bad"

# Python's header only in the CPython face (a preloaded library looks its few functions up by name), no engine's name in the
# plain hooks.
grep -rn --include='*.[ch]' 'Python\.h' abi allocator hooks/*.[ch] plugin/*.[ch] client tools &&
	fail "Python's header outside plugin/python and hooks/engine"
grep -niE '\b(vllm|sglang|lmdeploy)\b' hooks/*.[ch] allocator/*.[ch] && fail "an engine's name in hooks/ or allocator/"

# setenv moves the list that another thread's getenv walks: names go through plugin/environment.c. The tools have one thread.
grep -rnE --include='*.c' '\b(setenv|putenv|unsetenv|clearenv)\(' abi allocator hooks plugin client | grep -v '^plugin/environment\.c:' &&
	fail "the environment is changed elsewhere than in plugin/environment.c"
echo ok
