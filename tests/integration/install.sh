#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install.sh pkg-config|cmake     Installs into an empty prefix, moves it (the files must not name where they were built),
# and there builds and runs a program that finds Moor this way.
. "$(dirname "$0")/lib.sh"
no_sanitizer
consumer=$(dirname "$0")/consumer
cmake --install "$MOOR_BUILD_DIR" --prefix "$tmp/first" >"$tmp/install.log" || fail "cmake --install: $(tail -5 "$tmp/install.log")"
mv "$tmp/first" "$tmp/prefix"
lib=$(dirname "$(find "$tmp/prefix" -name libmoor.so.1 -type l)")
[ -f "$lib/moor/python/moor/libmoor.so.1" ] || fail "the library is not beside the package: $(find "$tmp/prefix")"
headers=$(cd "$tmp/prefix/include" && find . -type f)
[ "$headers" = ./moor/moor.h ] || fail "installed headers: $headers"

case $1 in
pkg-config)
	command -v pkg-config >/dev/null || skip "no pkg-config here"
	export PKG_CONFIG_PATH=$lib/pkgconfig
	# shellcheck disable=SC2046
	"$MOOR_CC" -std=c11 -Wall -Wextra -pedantic -Werror -o "$tmp/consumer" "$consumer/main.c" $(pkg-config --cflags --libs moor)
	LD_LIBRARY_PATH=$lib "$tmp/consumer" | grep -x "consumer ok"
	;;
cmake)
	cmake -S "$consumer" -B "$tmp/build" -DCMAKE_PREFIX_PATH="$tmp/prefix" -DCMAKE_C_COMPILER="$MOOR_CC" >"$tmp/log" ||
		fail "find_package: $(cat "$tmp/log")"
	cmake --build "$tmp/build" >"$tmp/log" || fail "build: $(cat "$tmp/log")"
	"$tmp/build/consumer" | grep -x "consumer ok"
	;;
*) fail "unknown way \"$1\"" ;;
esac

if [ -x "$tmp/prefix/bin/moor" ]; then
	path=$("$tmp/prefix/bin/moor" path | sed -n "s/^library //p") || fail "the installed moor command does not find its library"
	[ "$(readlink -f "$path")" = "$(readlink -f "$lib/libmoor.so.1")" ] || fail "moor path says $path"
fi
