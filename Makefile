# `make help` lists what there is to make. Everything lands in .venv, dist and Bazel's own cache.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BAZEL := PYTHON_BIN_PATH=$(CURDIR)/$(VENV)/bin/python tools/bazelw

# On a machine with a GPU, the TensorFlow that can use it. The two are one package otherwise.
TENSORFLOW ?= $(if $(shell nvidia-smi -L 2>/dev/null),tensorflow[and-cuda],tensorflow-cpu)==2.21.*
# What tests and demo need besides. tf_keras names tensorflow, and pip would install it over
# tensorflow-cpu: hence without its dependencies, which are TensorFlow's own.
TOOLS := pytest rich matplotlib ruff mypy
TF_KERAS := tf_keras==2.21.*
# What the demo measures besides Keras. PyTorch can join them: it is a large download.
PEERS ?= onnx onnxruntime openvino

.DEFAULT_GOAL := help
.PHONY: help demo test asan wheel lint clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

$(VENV)/ready: Makefile
	@tools/install_system_packages.sh
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; PYTHON=... names one." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check '$(TENSORFLOW)' $(TOOLS)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps '$(TF_KERAS)'
	@touch $@

test: $(VENV)/ready ## Build everything and run all tests
	@mkdir -p build
	@rm -f build/test_*
	$(BAZEL) test //... --keep_going --build_event_json_file=build/test_events.json; status=$$?; \
	  $(VENV)/bin/python tools/test_summary.py build/test_events.json | tee build/test_summary.txt; \
	  exit $$(( status | PIPESTATUS[0] ))

# The core's tests, then calls of the ops, malformed ones among them, whose library needs the
# sanitizer's own loaded before it, and that one libstdc++, whose throw it wraps. Python and
# TensorFlow leave memory to the process's end.
ASAN_TESTS := tests/test_op.py tests/test_op_stacks.py tests/test_argument_types.py
asan: $(VENV)/ready ## Run tests of the CPU core and of the ops' arguments under AddressSanitizer
	$(BAZEL) test --config=asan //cc/lstm/cpu/... //cc/kernels/...
	$(BAZEL) build --config=asan //tf_fused_lstm:libraries
	export ASAN_OPTIONS=detect_leaks=0 TF_FUSED_LSTM_LIBRARY_DIR=$(CURDIR)/bazel-bin/tf_fused_lstm; \
	  export PYTHONPATH=$(CURDIR); \
	  export LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)"; \
	  $(VENV)/bin/python -m pytest -q $(ASAN_TESTS) && \
	  $(VENV)/bin/python -m pytest -q tests/test_cases_f.py -k f1_

wheel: $(VENV)/ready ## Build the wheel into dist/
	$(BAZEL) build //:wheel
	@mkdir -p dist
	@rm -f dist/*.whl
	@install -m 644 bazel-bin/wheel/*.whl dist/
	@ls dist/*.whl

demo: wheel ## Install the wheel into .venv, train a small model, measure a few layers
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PEERS)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/*.whl
	$(VENV)/bin/python examples/char_lm.py
# This folder's Python sources have no libraries beside them: with those of the wheel.
	TF_FUSED_LSTM_LIBRARY_DIR=$$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tf_fused_lstm \
	  $(VENV)/bin/python -m benchmarks --set quick

lint: $(VENV)/ready ## Check Python types, and Python, C++ and Starlark style
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	@tools/lint_sources.sh

clean: ## Remove what this Makefile made
	if [[ -d $(VENV) ]]; then tools/bazelw clean; fi
	rm -rf build dist $(VENV) node_modules
