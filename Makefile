# SPDX-License-Identifier: Apache-2.0
# What people type. Each target does the set-up that it needs; CMake does the building.
#   make           build into build/          make demo     a real server (ENGINE=vllm|sglang|lmdeploy), Moor, a trainer: the cycle
#   make test      every test, engines too    make bench    the README's figures
#   make test-asan, make test-tsan            make fuzz     FUZZ_SECONDS each
#   make format, make lint, make clean        make abi-dump accept the present ABI as the golden one

BUILD ?= build
JOBS ?= $(shell nproc)
# One more than there are cores: a server of two ranks waits for a third of its time, and a test of processes for most of it.
CTEST = ctest --output-on-failure --no-tests=error -j $(shell expr $(JOBS) + 1)
FUZZ_SECONDS ?= 60
ENGINE ?= vllm
own = $(shell git ls-files '*.c' '*.h')

.PHONY: all setup setup-test engines test test-asan test-tsan demo bench fuzz format lint abi-dump mutations clean

all: setup
	cmake -S . -B $(BUILD) -G Ninja
	cmake --build $(BUILD) -j $(JOBS)

setup:
	@scripts/setup build

setup-test:
	@scripts/setup test

# Engine tests find their environments through $MOOR_VENV_*, and skip (saying so) where one cannot be made. Downloads and
# compilers wait for different things: both at once.
ENGINES = vllm vllm024 sglang lmdeploy
engines: setup-test
	scripts/engine-env $(ENGINES) >/dev/null

test: setup-test
	$(MAKE) --no-print-directory -j2 all engines
	vllm=$$(scripts/engine-env vllm); vllm024=$$(scripts/engine-env vllm024); \
	sglang=$$(scripts/engine-env sglang); lmdeploy=$$(scripts/engine-env lmdeploy); \
	cd $(BUILD) && MOOR_VENV_VLLM=$$vllm MOOR_VENV_VLLM024=$$vllm024 MOOR_VENV_SGLANG=$$sglang MOOR_VENV_LMDEPLOY=$$lmdeploy \
	$(CTEST) -LE slow

test-asan: setup-test
	cmake -S . -B $(BUILD)-asan -G Ninja -DMOOR_SANITIZE=address
	cmake --build $(BUILD)-asan -j $(JOBS)
	cd $(BUILD)-asan && $(CTEST) -L 'unit|integration' -LE 'engine|slow'

test-tsan: setup-test
	cmake -S . -B $(BUILD)-tsan -G Ninja -DMOOR_SANITIZE=thread
	cmake --build $(BUILD)-tsan -j $(JOBS)
	cd $(BUILD)-tsan && $(CTEST) -L 'unit|integration' -LE 'engine|slow'

demo: setup-test all
	MOOR_BUILD_DIR=$(abspath $(BUILD)) tests/engines/demo/run.sh $(ENGINE)

bench: setup-test all
	MOOR_BUILD_DIR=$(abspath $(BUILD)) bench/run.sh

fuzz: setup-test all
	MOOR_BUILD_DIR=$(abspath $(BUILD)) FUZZ_SECONDS=$(FUZZ_SECONDS) tests/fuzz/run.sh

# Each guard broken once; its test must fail. A few seconds each: MUTATIONS="-k barrier" for a part, "--dir DIR" keeps the build.
mutations: setup-test
	python3 tests/mutations/run.py -j $(JOBS) $(MUTATIONS)

format:
	clang-format -i $(own)

lint: all
	clang-format --dry-run -Werror $(own)
	clang-tidy --quiet -p $(BUILD) $(filter-out tests/%,$(filter %.c,$(own)))

abi-dump: setup-test all
	tests/integration/abi_dump.sh $(BUILD)/python/moor/libmoor.so.1 abi/libmoor.abi

clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan
