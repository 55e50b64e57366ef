#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the two binaries export, need and promise to the loader: the golden lists, no library but libc, no static TLS (a
# library with it cannot be dlopened late), nothing that runs before it is asked to.
. "$(dirname "$0")/lib.sh"
no_sanitizer

exports() { nm -D --defined-only "$1" | awk '$2 != "A" {print $3}' | sort; }
golden() { grep -v '^#' "$MOOR_SOURCE_DIR/abi/$1"; }
needed() { readelf -dW "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort; }

# has TEXT PATTERN (not a pipe: grep -q would end the writer early, and pipefail would call that a failure)
has() { grep -qE "$2" <<<"$1"; }

check() {
	local file=$1 list=$2 allowed=$3 lib dynamic segments
	[ -f "$file" ] || fail "$file is not built"
	diff <(golden "$list") <(exports "$file") || fail "$file: exports are not those of abi/$list"
	for lib in $(needed "$file"); do
		[[ $lib =~ ^($allowed)$ ]] || fail "$file needs $lib"
	done
	dynamic=$(readelf -dW "$file") segments=$(readelf -lW "$file")
	! has "$dynamic" STATIC_TLS || fail "$file has static TLS"
	! has "$dynamic" TEXTREL || fail "$file has text relocations"
	has "$dynamic" 'FLAGS_1.*NOW.*NODELETE' || fail "$file lacks -z now or -z nodelete"
	has "$segments" GNU_RELRO || fail "$file lacks -z relro"
	! has "$segments" 'GNU_STACK.*RWE' || fail "$file has an executable stack"
}

lib=$package/libmoor.so.1 face=$package/_moor.abi3.so
libs='libc\.so\.6|ld-linux-.*'
check "$lib" libmoor.exports "$libs"
has "$(readelf -dW "$lib")" 'SONAME.*\[libmoor\.so\.1\]' || fail "libmoor.so.1: wrong SONAME"
if [ -n "${MOOR_HAS_PYTHON:-}" ]; then
	check "$face" _moor.exports "$libs|libmoor\.so\.1"
	has "$(readelf -dW "$face")" '(RUNPATH|RPATH).*\[\$ORIGIN\]' || fail "_moor: the run path is not \$ORIGIN"
fi

has "$(nm -Du "$lib")" ' _?Py' && fail "libmoor.so.1 refers to Python"

# jemalloc is inside and private, and without its start-up constructor.
symbols=$(nm "$lib")
has "$symbols" ' t moor_je_mallocx$' || fail "libmoor.so.1: no private jemalloc in it"
! has "$symbols" jemalloc_constructor || fail "libmoor.so.1: jemalloc's start-up constructor is in it"
echo ok
