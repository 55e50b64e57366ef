#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the targets with libFuzzer and AddressSanitizer (clang) and runs each for FUZZ_SECONDS. What crashes one is kept in
# build-fuzz/tests/fuzz/crash-*, and is replayed by giving the file to the same program.
set -euo pipefail
cd "$(dirname "$0")/../.."
CC=${CLANG:-clang} cmake -S . -B build-fuzz -G Ninja -DMOOR_FUZZ=ON -DMOOR_SANITIZE=address -DMOOR_BUILD_PYTHON=OFF
cmake --build build-fuzz --target fuzz_config fuzz_snapshot fuzz_wire fuzz_reply fuzz_model
cd build-fuzz/tests/fuzz
for target in fuzz_config fuzz_snapshot fuzz_wire fuzz_reply fuzz_model; do
	mkdir -p corpus-$target
	if [ -d "../../../tests/fuzz/${target/fuzz_/corpus-}" ]; then cp ../../../tests/fuzz/${target/fuzz_/corpus-}/* corpus-$target/; fi
	MOOR_FUZZ_SEEDS=corpus-$target ./$target -max_total_time="${FUZZ_SECONDS:-60}" -max_len=8192 -print_final_stats=1 corpus-$target
done
