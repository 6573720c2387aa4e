SHELL := /bin/bash

LINT_VERSION := v2.15.0
LINT := bin/golangci-lint-$(LINT_VERSION)

.DEFAULT_GOAL := help
.PHONY: help test lint fmt demo bench

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## run all tests with the race detector; TESTFLAGS='-run Fence' narrows, PERKEY_REQUIRE_REDIS=1 insists on a real Redis
	@scripts/test.sh $(TESTFLAGS)

lint: $(LINT) ## run the linters and check which package links what
	$(LINT) run ./...
	cd bench && ../$(LINT) run ./...
	scripts/deps.sh
	go mod tidy -diff
	cd bench && go mod tidy -diff

fmt: $(LINT) ## format the code
	$(LINT) fmt ./...
	cd bench && ../$(LINT) fmt ./...

demo: ## run the demo: an order service on gin, with a scoreboard
	go run ./examples/demo $(ARGS)

bench: ## measure beside other locks and the floors, on a redis-server of its own; ARGS=-quick for two minutes
	cd bench && go run . $(ARGS)

# The linter is built by the toolchain that builds the code, and is in no go.mod.
$(LINT):
	GOBIN=$(CURDIR)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv bin/golangci-lint $@
