# SPDX-License-Identifier: MIT
# The short commands; CMake does the building (see CMakePresets.json for the same builds without this file).
#   make           the program, build/deeppcr, and the CUDA backend where nvcc is found (CUDA=off: not)
#   make test      every test, by CTest; LEVELS=native: without kernels that this processor cannot run; PART=1/3: of
#                  what the sanitizers run and nvcc compiles every third, from the first
#   make run       the main job, results in out/   make check    the quick tests only
#   make install PREFIX=/usr/local [DESTDIR=]      make uninstall with the same PREFIX and DESTDIR
#   make clean    removes build folders and out/
#   make python    the Python package, in a fresh virtual environment, and its tests
#   make format lint asan tsan clang fuzz arm avx512 peers    see docs/dev.md
BUILD ?= build
PREFIX ?= /usr/local
CUDA ?= auto
LEVELS ?= all
PART ?= 1/1
TARGET = deeppcr_product
OUT ?= out
export OUT

.PHONY: all run test check install uninstall clean format lint asan tsan clang fuzz arm avx512 peers python
.NOTPARALLEL:
SHELL = /bin/bash
.SHELLFLAGS = -o pipefail -c

all:
	@scripts/install-deps build
	@test -f $(BUILD)/build.ninja || { echo "Building $(BUILD)/deeppcr"; \
		cmake --log-level=WARNING -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DDEEPPCR_TESTS=OFF \
			-DDEEPPCR_CUDA=$(CUDA) >/dev/null; }
	@grep -qsE '^DEEPPCR_LEVELS:[A-Z]+=all' $(BUILD)/CMakeCache.txt || cmake --log-level=WARNING -B $(BUILD) -DDEEPPCR_LEVELS=all >/dev/null
	@[ $(TARGET) != deeppcr_product ] || [ -e $(BUILD)/libdeeppcr_cuda.so.0 ] || \
		! grep -qs '^build deeppcr_product: .*libdeeppcr_cuda' $(BUILD)/build.ninja || \
		echo "nvcc compiles the CUDA backend too, for many minutes; 'make clean' and 'make CUDA=off' leave it out"
	@cmake --build $(BUILD) --target $(TARGET) -- --quiet | { grep -vE '^(ninja: no work to do|-- )' || true; }

run:
	@scripts/install-deps run
	@$(MAKE) --no-print-directory all TARGET=deeppcr_program
	@scripts/run $(BUILD)

test:
	@scripts/install-deps test
	@DEEPPCR_LEVELS=$(LEVELS) DEEPPCR_PART=$(PART) scripts/test $(BUILD)

check:
	@scripts/install-deps test
	@DEEPPCR_VARIANTS=OFF scripts/test $(BUILD)

install: all
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)"

uninstall:
	@scripts/uninstall $(BUILD) "$(PREFIX)" "$(DESTDIR)"

clean:
	@rm -rf build build-* "$(OUT)"

format:
	@scripts/install-deps lint
	@scripts/lint format

lint:
	@scripts/install-deps lint
	@scripts/lint

asan tsan clang fuzz:
	@scripts/install-deps test
	@scripts/variant $@ build-$@

arm:
	@scripts/install-deps test arm
	@scripts/variant arm build-arm

avx512:
	@scripts/install-deps test avx512
	@scripts/avx512 $(BUILD)

peers:
	@scripts/install-deps peers
	@bench/peers/run

python:
	@scripts/install-deps python
	@scripts/python
