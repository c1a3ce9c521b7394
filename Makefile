# A thin front for cmake. `make help` lists the targets.
#
#   BUILD=dir   where to build (build)          PREFIX=dir  where `make install` puts things (/usr/local)
#   JOBS=n      parallel jobs (all cores)       TEXT=file   what `make demo` learns (the system's C headers)
#   TESTS=all   `make test` runs the long tests as well (quick)
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_FLAGS ?=
CTEST_FLAGS ?=
TESTS ?= quick
MAKEFLAGS += --no-print-directory

.PHONY: all deps configure test test-all demo install bench examples format check clean help
all: configure
	@cmake --build $(BUILD) -j $(JOBS) --target weft_cli weft $(if $(filter OFF,$(WEFT_SHARED)),,weft_shared)

help:
	@echo "make            build a release into $(BUILD)/"
	@echo "make test       build everything and run the tests, without the long ones"
	@echo "make test-all   run the long tests as well: kills, hosts, launchers, searches by brute force"
	@echo "make demo       train a small language model for a few minutes [TEXT=file]"
	@echo "make install    install into PREFIX=$(PREFIX)"
	@echo "make bench      build the benchmarks into $(BUILD)/bench/"
	@echo "make examples   build the examples into $(BUILD)/examples/"
	@echo "make format     format all C files; make check: format, floors, scripts, ABI"
	@echo "make clean      remove $(BUILD)/"

deps:
	@sh tools/install-deps

configure: deps
	@mkdir -p $(BUILD)
	@cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release \
		-DCMAKE_INSTALL_PREFIX=$(PREFIX) -DWEFT_WERROR=OFF $(CMAKE_FLAGS) >$(BUILD).log 2>&1 || \
		{ cat $(BUILD).log; exit 1; }

test: configure
	@cmake --build $(BUILD) -j $(JOBS)
	@JOBS=$(JOBS) tools/run_tests $(BUILD) $(if $(filter quick,$(TESTS)),-LE "long|fenced") $(CTEST_FLAGS)

test-all:
	@$(MAKE) test TESTS=all

demo: all
	@WEFT=$(BUILD)/weft TEXT="$(TEXT)" sh tools/demo

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

bench: configure
	@cmake --build $(BUILD) -j $(JOBS) --target bench

examples: configure
	@cmake --build $(BUILD) -j $(JOBS) --target examples

format:
	@tools/format

check:
	@tools/format --check
	@tools/lint
	@tools/tidy
	@tools/check_floors
	@tools/check_names
	@tools/count_prose
	@tools/abi --check

clean:
	@rm -rf $(BUILD)
