#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the two binaries export, need and promise to the loader: the golden lists, no library but libc, no static TLS (a
# library with it cannot be dlopened late), nothing that runs before it is asked to.
. "$(dirname "$0")/lib.sh"
no_sanitizer

exports() { nm -D --defined-only "$1" | awk '$2 != "A" {print $3}' | sort; }
golden() { grep -v '^#' "$MOOR_SOURCE_DIR/abi/$1"; }
needed() { readelf -dW "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort; }

check() {
	local file=$1 list=$2 allowed=$3 lib
	[ -f "$file" ] || fail "$file is not built"
	diff <(golden "$list") <(exports "$file") || fail "$file: exports are not those of abi/$list"
	for lib in $(needed "$file"); do
		[[ $lib =~ ^($allowed)$ ]] || fail "$file needs $lib"
	done
	readelf -dW "$file" | grep -q STATIC_TLS && fail "$file has static TLS"
	readelf -dW "$file" | grep -q TEXTREL && fail "$file has text relocations"
	readelf -dW "$file" | grep -q 'FLAGS_1.*NOW.*NODELETE' || fail "$file lacks -z now or -z nodelete"
	readelf -lW "$file" | grep -q GNU_RELRO || fail "$file lacks -z relro"
	readelf -lW "$file" | grep 'GNU_STACK' | grep -q 'RWE' && fail "$file has an executable stack"
	return 0
}

libs='libc\.so\.6|ld-linux-.*'
check "$package/libmoor.so.1" libmoor.exports "$libs"
readelf -dW "$package/libmoor.so.1" | grep -q 'SONAME.*\[libmoor\.so\.1\]' || fail "libmoor.so.1: wrong SONAME"
if [ -n "${MOOR_HAS_PYTHON:-}" ]; then
	check "$package/_moor.abi3.so" _moor.exports "$libs|libmoor\.so\.1"
	readelf -dW "$package/_moor.abi3.so" | grep -qE '(RUNPATH|RPATH).*\[\$ORIGIN\]' || fail "_moor: the run path is not \$ORIGIN"
fi

# jemalloc and jansson are inside and private: their names are there, and none of jemalloc's is a constructor.
nm "$package/libmoor.so.1" | grep -q ' t moor_je_mallocx$' || fail "libmoor.so.1: no private jemalloc in it"
nm "$package/libmoor.so.1" | grep -q 'jemalloc_constructor' && fail "libmoor.so.1: jemalloc's start-up constructor is in it"
echo ok
