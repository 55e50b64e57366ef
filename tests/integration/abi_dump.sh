#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# abi_dump.sh LIBRARY FILE     The ABI of LIBRARY, types included, without what differs from machine to machine.
set -euo pipefail
abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --type-id-style hash \
	--headers-dir "$(dirname "$0")/../../abi/include" --drop-private-types --out-file "$2" "$1"
