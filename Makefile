# From nothing to a running server, or to green tests: needs Python 3.11 or newer, and make.
#
#   make serve ARGS='--port 9000'      PYTHON=python3.13 make test

PYTHON ?= python3
ARGS ?=
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
OPENAI_VENV ?= .venv-openai
FUZZ_VENV ?= .venv-fuzz
CLIENT_VENVS ?= .venv-clients
BIN := $(VENV)/bin

# The constraints hold torch to one version, so that no second one is ever downloaded.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install -c constraints-dev.txt
INPUTS := pyproject.toml constraints-dev.txt

# Without it, or a network to bring it by, the model that is shipped is served.
BRING_DEMO = $(if $(findstring --model,$(ARGS))$(findstring --engine,$(ARGS)),, \
  $(BIN)/python -m tilert_stream.serve.demo_model >/dev/null || echo "serving tiny-glm5" >&2)

# pyright runs on the node of its own wheel, whatever node the machine has.
export PYRIGHT_PYTHON_GLOBAL_NODE := 0
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help serve pd test test-vllm test-openai test-clients fuzz-openapi soak bench bench-pd bench-transports model lint format types hooks clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1	\2/p' $(MAKEFILE_LIST) | expand -t 24

serve: $(VENV)/.serve ## serve the demo model, or the shipped one; ARGS are the server's options
	@$(BRING_DEMO)
	@$(BIN)/python -m tilert_stream.serve $(ARGS)

pd: $(VENV)/.serve ## serve it by a router, a prefill and two decode nodes; ARGS='--help' lists its options
	@$(BRING_DEMO)
	@$(BIN)/python -m tilert_stream.serve.local_cluster $(ARGS)

test: $(VENV)/.dev model ## run the tests; ARGS are pytest's options
	$(BIN)/python -m pytest $(ARGS)

test-vllm: $(VENV)/.dev model ## run the tests on a real vLLM; its environment takes 3.5 GB
	python="$$($(BIN)/python tests/vllm/environment.py $(VLLM_VENV))" && \
	  VLLM_PYTHON="$$python" $(BIN)/python -m pytest -m vllm -o faulthandler_timeout=1200 \
	  tests/vllm $(ARGS)

test-openai: $(VENV)/.dev ## run the openai SDK's own tests against the server
	python="$$($(BIN)/python tests/openai_sdk/environment.py $(OPENAI_VENV))" && \
	  OPENAI_SDK_PYTHON="$$python" $(BIN)/python -m pytest -m openai_sdk tests/openai_sdk $(ARGS)

test-clients: $(VENV)/.dev ## run benchmark clients against the server; their environments take 3.5 GB
	$(BIN)/python tests/clients/environment.py $(CLIENT_VENVS)
	CLIENT_ENVIRONMENTS="$(abspath $(CLIENT_VENVS))" VLLM_PYTHON="$(abspath $(VLLM_VENV))/bin/python" \
	  $(BIN)/python -m pytest -m clients -o faulthandler_timeout=600 -rs tests/clients $(ARGS)

fuzz-openapi: $(VENV)/.dev ## ask the server all that its /openapi.json describes; SCHEMATHESIS_SEED=N repeats a run
	command="$$($(BIN)/python tests/openapi_fuzz/environment.py $(FUZZ_VENV))" && \
	  SCHEMATHESIS="$$command" $(BIN)/python -m pytest -m openapi_fuzz -o faulthandler_timeout=600 \
	  tests/openapi_fuzz $(ARGS)

soak: $(VENV)/.dev model ## run the long random tests
	$(BIN)/python -m pytest -m soak $(ARGS)

bench: $(VENV)/.dev ## measure beside the floor and the peers; ARGS are python -m bench's options
	$(BIN)/python -m bench --check $(ARGS)

bench-pd: $(VENV)/.dev ## the same for the router; ARGS are python -m bench.pd's options
	$(BIN)/python -m bench.pd --check $(ARGS)

bench-transports: $(VENV)/.dev ## the same for KV transports; ARGS are its module's options
	$(BIN)/python -m bench.transports --check $(ARGS)

model: $(VENV)/.serve ## bring the demo model into the cache
	@$(BIN)/python -m tilert_stream.serve.demo_model

lint: $(VENV)/.dev ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev ## put style and format right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## check types, with both checkers
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

hooks: $(VENV)/.dev ## check every commit before it is made
	$(BIN)/pre-commit install

clean: ## remove what these targets made, but for the model in the cache
	rm -rf .venv .venv-vllm .venv-openai .venv-fuzz .venv-clients .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.13"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.serve: $(VENV)/.python $(INPUTS)
	$(INSTALL) -e '.[engine,trio,uvloop]'
	@touch $@

$(VENV)/.dev: $(VENV)/.serve
	$(INSTALL) -e '.[dev]'
	@touch $@
