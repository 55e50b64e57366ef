#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# abi_dump.sh LIBRARY FILE     The ABI of LIBRARY, types included, without what differs from machine to machine.
set -euo pipefail
abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --exported-interfaces-only \
	--headers-dir "$(dirname "$0")/../../abi/include" --drop-private-types --out-file "$2" "$1"
# What libabigail itself still writes of the build machine.
sed -i -E "s/^(<abi-instr.*) path='[^']*'/\1/; s/ (path|comp-dir-path)='[^']*'//g" "$2"
