#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# _moor.abi3.so imports only what the stable ABI of 3.11 names and CPython 3.10 exports (cpython-3.10-abi3.txt is that list), so
# that one file loads on 3.10 and later. Where a 3.10 is at hand, the list is checked against it.
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
[ -f "$package/_moor.abi3.so" ] || skip "this build has no _moor.abi3.so"
export LC_ALL=C
nm -Du "$package/_moor.abi3.so" | awk '$2 ~ /^_?Py/ {print $2}' | sort -u >"$tmp/used"
[ "$(wc -l <"$tmp/used")" -gt 50 ] || fail "nm shows hardly any Python symbol in _moor.abi3.so"
foreign=$(comm -23 "$tmp/used" "$here/cpython-3.10-abi3.txt")
[ -z "$foreign" ] || fail "_moor.abi3.so imports what CPython 3.10's stable ABI lacks: $foreign"

python=$(find_python 3.10)
if [ -n "$python" ]; then
	library=$(ldd "$python" | awk '/libpython3/ {print $3}')
	nm -D --defined-only "${library:-$python}" | awk '$3 ~ /^_?Py/ {print $3}' | sort -u >"$tmp/exported"
	wrong=$(comm -23 "$here/cpython-3.10-abi3.txt" "$tmp/exported")
	[ -z "$wrong" ] || fail "the list has what this CPython 3.10 does not export: $wrong"
fi
echo ok
