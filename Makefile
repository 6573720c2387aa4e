SHELL := /bin/bash

LINT_VERSION := v2.15.0
LINT := bin/golangci-lint-$(LINT_VERSION)

# Those beside the one here.
MODULES := bench cmd/perkey examples/demo/demotest examples/shop httplock/openapitest lockotel lockprom ops/console/browsertest sim sqlfence/sqltest

.DEFAULT_GOAL := help
.PHONY: help test test-all test-embedded conformance lint fmt docs api demo bench simulate soak soak-simulate soak-locks soak-queue soak-bodies soak-fleet

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## test the library on a real Redis, with the race detector, and play 200 short worlds; TESTFLAGS='-run Fence' narrows, SLOWEST=20 lists the slowest, PERKEY_REQUIRE_REDIS=1 insists on a real Redis
	@scripts/test.sh $(TESTFLAGS)

test-all: ## run all tests: also mutants, what costs most, and what needs browsers, databases, promtool or Node.js; but no worlds
	@scripts/test.sh all $(TESTFLAGS)

test-embedded: ## run what the embedded Redis can run of the packages that have Lua scripts, without the race detector
	@PERKEY_TEST_REDIS=embedded PERKEY_REQUIRE_REDIS= scripts/gotest.sh -skip Mutant $(TESTFLAGS) ./core/... ./delayqueue/... ./asynqlock ./idempotency ./locktest ./ops

conformance: ## check every adapter against the same promises, on both Redises, and print the table; PERKEY_REQUIRE_REDIS=1 as for test
	@go run ./scripts/conformance ./...

lint: $(LINT) ## run the linters, check which package links what, and how much there is of all
	$(LINT) run ./...
	for module in $(MODULES); do (cd $$module && $(CURDIR)/$(LINT) run ./...) || exit; done
	cd sim && CGO_ENABLED=0 $(CURDIR)/$(LINT) run --build-tags=faketime ./world
	scripts/deps.sh
	scripts/budget.sh
	for module in . $(MODULES); do (cd $$module && go mod tidy -diff) || exit; done

fmt: $(LINT) ## format the code
	$(LINT) fmt ./...
	for module in $(MODULES); do (cd $$module && $(CURDIR)/$(LINT) fmt ./...) || exit; done

docs: ## build the static site of README.md, CHANGELOG.md and docs/ in bin/site, and check its links
	@scripts/docs.sh

api: ## compare the public API of every module with the last tag's
	@scripts/api.sh

demo: ## run the demo: an order service on gin, with a scoreboard
	go run ./examples/demo $(ARGS)

bench: ## measure beside other locks and the floors, on a redis-server of its own; ARGS=-quick for some minutes
	cd bench && go run . $(ARGS)

simulate: ## play SEEDS worlds (100) with faults, in virtual time, from SEED (1) on
	cd sim && go run . -kept testdata/seeds -seed $(or $(SEED),1) -seeds $(or $(SEEDS),100)
	$(if $(SEEDS)$(SEED),,cd sim && go run . -mutants results/mutants.tsv -check -seeds 2)

soak-simulate: ## play SEEDS worlds (12,000: two hours on two cores) from SEED (1,000,000) on, and add them to sim/results/worlds.jsonl
	cd sim && for world in locks queue web; do go run . -results results/worlds.jsonl -world $$world -seed $(or $(SEED),1000000) -seeds $$(($(or $(SEEDS),12000) / 3)) || exit; done

soak: soak-locks soak-queue soak-bodies soak-fleet soak-simulate ## all of the next

soak-locks: ## break clients, network and Redis for OPS operations (ten million: a quarter of an hour), and check every history; SEED replays faults
	PERKEY_REQUIRE_REDIS=1 go test -tags=soak -count=1 -timeout=6h -v -run=^TestSoak ./core $(if $(OPS),-ops=$(OPS)) $(if $(SEED),-seed=$(SEED))

soak-queue: ## the same for MESSAGES (100,000: a quarter of an hour) in a queue, and account for each
	PERKEY_REQUIRE_REDIS=1 go test -tags=soak -count=1 -timeout=2h -v -run="^Test(Soak|Account)" ./delayqueue $(if $(MESSAGES),-messages=$(MESSAGES)) $(if $(SEED),-seed=$(SEED))

soak-bodies: ## 10,000 clients with 1 MiB each in front of one held key: what the process takes up
	PERKEY_REQUIRE_REDIS=1 go test -tags=soak -count=1 -timeout=10m -v -run=^TestSoak ./httplock

soak-fleet: ## a thousand processes that report to one Redis, and a fleet of as many in which all goes wrong: what they cost
	PERKEY_REQUIRE_REDIS=1 go test -tags=soak -count=1 -timeout=10m -v -run=^TestSoak ./ops

# The linter is built by the toolchain that builds the code, and is in no go.mod.
$(LINT):
	GOBIN=$(CURDIR)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv bin/golangci-lint $@
