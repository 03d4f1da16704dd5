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
	for extra in operator runtime dev; do \
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
	$(PY) -m pytest -q -n $(WORKERS) tests

format: .venv/stamp ## rewrite to the house format
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .
