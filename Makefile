# Everything a developer types. `make help` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
CLUSTER := PYTHONPATH=e2e $(PY) -m cluster
WORKERS ?= 2

.PHONY: help venv
help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 24

venv: .venv/stamp ## the Python environment of every other command, made once
.venv/stamp: requirements/dev.txt requirements/model.txt pyproject.toml scripts/venv
	scripts/venv

.PHONY: lock
lock: .venv/stamp ## resolve requirements/*.txt again from pyproject.toml
	for extra in operator runtime torch dev; do \
	  .venv/bin/uv pip compile -q pyproject.toml --extra $$extra --python-version 3.11 --universal --upgrade \
	    --generate-hashes --no-emit-index-url --no-annotate --no-header -o requirements/$$extra.txt; done

.PHONY: check format unit
check: .venv/stamp ## format, lint, types, import contracts, unit tests: the loop while working
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(MAKE) --no-print-directory unit

unit: .venv/stamp
	$(PY) -m pytest -q -n $(WORKERS) --dist worksteal tests
	$(PY) -m pytest -q -n $(WORKERS) --dist worksteal tests/triton_tests

.PHONY: explore
explore: .venv/stamp ## the property tests with other examples than `make check` draws; ROUNDS=10 times
	for round in $$(seq $(or $(ROUNDS),10)); do \
	  OCTAVO_EXAMPLES=other $(PY) -m pytest -q -n $(WORKERS) --dist worksteal -m hypothesis tests || exit 1; done

format: .venv/stamp ## rewrite to the house format
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

.PHONY: demo images cluster-up cluster-down
# Only a KUBECONFIG that is typed counts, never one from the environment: nobody's cluster gets a demo by accident.
DEMO_KUBECONFIG = $(if $(filter command,$(firstword $(origin KUBECONFIG))),$(KUBECONFIG))
demo: .venv/stamp ## a real cluster, the operator, a small model, an answer; KUBECONFIG= REGISTRY= for a cluster that you have
	PYTHONPATH=e2e $(PY) e2e/demo.py --kubeconfig='$(DEMO_KUBECONFIG)' --registry='$(REGISTRY)' \
	  --operator-image='$(OPERATOR_IMAGE)' --runtime-image='$(RUNTIME_IMAGE)' --pull-secret='$(PULL_SECRET)' --namespace='$(or $(NAMESPACE),default)'

images: .venv/stamp ## build both images; REGISTRY=… pushes them there, otherwise they go into our own cluster
	$(CLUSTER) images $(if $(REGISTRY),--registry '$(REGISTRY)')

cluster-up: .venv/stamp ## the one-node cluster
	$(CLUSTER) up

cluster-down: .venv/stamp ## remove the one-node cluster; PURGE=1 with the images loaded into it
	$(CLUSTER) down $(if $(PURGE),--purge)

.PHONY: test stories
test: .venv/stamp ## everything: check, the CPU kernels by the other compiler, the GPU kernels as machine code and in a dry run, the stories on the real cluster; what CI runs
	$(MAKE) --no-print-directory check
	$(MAKE) --no-print-directory ziglang
	$(MAKE) --no-print-directory bench-kernels
	$(MAKE) --no-print-directory bench-gpu DRY=1
	$(MAKE) --no-print-directory stories

stories: .venv/stamp ## the end-to-end stories on the one-node cluster, which is started when it is not up
	$(CLUSTER) up
	$(CLUSTER) images >/dev/null
	$(PY) -m pytest -q -p no:cacheprovider --timeout=900 --durations=10 e2e/stories

# Without a PATH there is no other compiler.
ZIGLANG := XDG_CACHE_HOME=$(CURDIR)/.venv/ziglang PYTHONPATH=kernels:runtime
.PHONY: ziglang
ziglang: .venv/stamp ## the CPU kernels built by PyPI's ziglang, as a wheel is where there is no C++ compiler, and their tests
	PATH= $(ZIGLANG) $(CURDIR)/$(PY) -c 'from octavo_kernels.native import isas; print(*isas())'
	$(ZIGLANG) $(PY) -m pytest -q -p no:cacheprovider tests/kernel_tests

.PHONY: bench-kernels
bench-kernels: .venv/stamp ## compile the GPU kernels (no GPU needed) and compare with the committed table; UPDATE=1 rewrites it
	@$(PY) -m bench.kernels $(if $(UPDATE),--update) $(if $(ONLY),--only '$(ONLY)')

.PHONY: bench-gpu
bench-gpu: .venv/stamp ## kernels and engine on a GPU, in eight minutes; PARTS='A B' some parts, PARTS=tune the table of configurations, DRY=1 tiny shapes on the CPU
	@bench/gpu.sh $(PARTS) $(if $(DRY),--dry-run)

# Its packages lie before those of the usual environment, which has torch and all else.
OLDER := .venv/triton-3.6
.PHONY: older-triton
older-triton: .venv/stamp ## the interpreter tests and the compilation of the GPU kernels under Triton 3.6, which it installs; many minutes
	[ -e $(OLDER)/bin/python ] || .venv/bin/uv venv -q --python $(PY) $(OLDER)
	.venv/bin/uv pip install -q --python $(OLDER)/bin/python triton==3.6.0 'numpy<2.4'
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(OLDER)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/usual.pth"
	PYTHONPATH=kernels:runtime $(OLDER)/bin/python -m pytest -q -p no:cacheprovider \
	  -W 'ignore:Conversion of an array with ndim:DeprecationWarning' tests/triton_tests
	PYTHONPATH=kernels:runtime $(OLDER)/bin/python -m bench.kernels $(if $(UPDATE),--update)

.PHONY: bench-serving bench-peers bench-quality bench-paging bench-scheduling bench-core bench-autoscaling bench-scraping bench-operator bench-neighbours
bench-serving: .venv/stamp ## our engine's speed, offline and over HTTP, beside this machine's limits; PROFILE=1 tells where it goes
	@$(PY) -m bench.serving $(if $(PROFILE),--profile)

bench-peers: .venv/stamp ## Octavo, vLLM and llama.cpp in turns on two cores; installs those first; SHORT=1 one turn, INSTALL=1 no turn, ONLY=A,B some sides
	@$(PY) -m bench.peers $(if $(SHORT),--short) $(if $(INSTALL),--install) $(if $(ONLY),--only '$(ONLY)')

bench-neighbours: .venv/stamp ## what a busy neighbour costs an engine, and two engines each other
	@$(PY) -m bench.neighbours

bench-quality: .venv/stamp ## what quantised weights and KV cost in perplexity and agreement, and save in bytes
	@$(PY) -m bench.quality

bench-paging: .venv/stamp ## memory that holds tokens, requests at once, blocks shared: beside reservation and the paper's figures
	@$(PY) -m bench.paging

bench-scheduling: .venv/stamp ## latencies, goodput, preemption and admission in replays of the pinned traces
	@$(PY) -m bench.scheduling

bench-core: .venv/stamp ## the scheduler's time per step and memory per request; NANO_VLLM=DIR compares with its scheduler
	@$(PY) -m bench.core $(if $(NANO_VLLM),--nano-vllm '$(NANO_VLLM)')

bench-autoscaling: .venv/stamp ## policies that scale replicas, on the same traces in a simulated cluster; SHORT=1 for two seeds
	@$(PY) -m bench.autoscaling $(if $(SHORT),--short)

bench-scraping: .venv/stamp ## what reading the metrics of 500 pods costs the operator; SHORT=1 for three rounds
	@$(PY) -m bench.scraping $(if $(SHORT),--short)

bench-operator: .venv/stamp ## the operator on a real API server with fake nodes; SHORT=1 in minutes, ONLY=A,B some scenarios
	@PYTHONPATH=e2e $(PY) -m bench.reconciling $(if $(SHORT),--short) $(if $(ONLY),--only '$(ONLY)')
