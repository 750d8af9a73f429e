# kvorum: `make run` and `make test` are all that a newcomer needs; `make help` lists the rest.

.DEFAULT_GOAL := help
.PHONY: help run test check java-test lint bench bench-quick ladder fuzz openapi recipes proxies release deb tarball image docs clean sim soak canaries sim-build

NODES ?= 3
BASE_PORT ?= 8080
DATA ?= ./data
OUT ?= dist
MINUTES ?= 1
SEED ?= 1
SEEDS ?= 40
SUMMARY ?= soak.md
FROM ?= $(shell date +%s)
SIM = $(or $(CARGO_TARGET_DIR),target)/debug/kvorum-sim

# What `kvorum --version` and the lab's reports say of the source; empty outside a clone.
run release: export KVORUM_COMMIT = $(shell git describe --always --dirty --abbrev=10 2>/dev/null)

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Runs a cluster of NODES (3) on 127.0.0.1, ports from BASE_PORT (8080) on, with its data in DATA (./data)
	cargo run --release -p kvorum -- dev --nodes $(NODES) --base-port $(BASE_PORT) --data-dir $(DATA)

test: ## Runs every test in every language: units, real sockets, real faults, clients, proxies, fuzzing, simulation
	@bash scripts/test.sh

check: lint ## What to run before each commit: format, lints, units, the HTTP contract, 40 simulated seeds
	cargo test --workspace --locked --lib --quiet
	cargo test --workspace --locked --quiet --test tidy
	cargo test --workspace --locked --quiet --test nodes http_contract
	@$(MAKE) --no-print-directory sim-build
	@$(SIM) ci --seeds $(SEEDS) --from $(FROM) --quick

java-test: ## Builds and tests the Java client, also against three nodes (KVORUM_BINARY, or built)
	@bash scripts/java.sh

lint: ## Checks format and lints; no warning is let pass
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

release: ## Builds the optimised binary: target/release/kvorum
	cargo build --release --locked -p kvorum
	@! grep -q 'crash point' $(or $(CARGO_TARGET_DIR),target)/release/kvorum || { echo "FAILED: this release has crash points"; exit 1; }

deb: release ## Makes a Debian package of the release in OUT (./dist), with its checksum
	@bash scripts/package.sh deb $(or $(CARGO_TARGET_DIR),target)/release/kvorum $(OUT)

tarball: release ## Makes an archive of the release for any Linux with glibc, likewise
	@bash scripts/package.sh tarball $(or $(CARGO_TARGET_DIR),target)/release/kvorum $(OUT)

image: release ## Makes an OCI image of the release in OUT, without an engine
	@mkdir -p $(OUT) && python3 scripts/image.py $(or $(CARGO_TARGET_DIR),target)/release/kvorum $(OUT)/kvorum-image.tar

docs: ## Builds the documentation as a site in OUT/docs, with mdbook, and follows its links
	@bash scripts/docs.sh $(OUT)

bench: release ## Measures the node against a bare responder and a bare disk (about 10 minutes)
	@bash scripts/bench.sh

bench-quick: release ## The same in about 2 minutes, with rougher figures
	@bash scripts/bench.sh --quick

ladder: release ## Measures every stage of the ladder with `kvorum lab`; report in ./ladder (about 20 minutes)
	@$(or $(CARGO_TARGET_DIR),target)/release/kvorum lab run ladder -o ladder

fuzz: ## Fuzzes each target for MINUTES (1)
	@bash fuzz/run.sh $$(( $(MINUTES) * 60 ))

openapi: release ## Makes requests from the OpenAPI document and holds three nodes to it (about a minute)
	@KVORUM=$${CARGO_TARGET_DIR:-target}/release/kvorum bash scripts/openapi.sh

recipes: release ## Runs the client recipes of docs/recipes, in the languages that are installed
	@KVORUM=$${CARGO_TARGET_DIR:-target}/release/kvorum bash scripts/recipes.sh

proxies: release ## Runs the contract through nginx and haproxy; as root it installs them
	@KVORUM=$${CARGO_TARGET_DIR:-target}/release/kvorum bash scripts/proxies.sh

sim: sim-build ## Replays SEED (1) in the simulation, and prints its trace and the verdict
	@$(SIM) run --trace --seed $(SEED)

soak: sim-build ## Simulates fresh seeds on all cores for MINUTES (1), then cuts the power of real stores; summary in SUMMARY (soak.md)
	@$(SIM) soak --minutes $(MINUTES) --from $(FROM) --summary $(SUMMARY)
	@KVORUM_TEST_ROUNDS=$$(( $(MINUTES) * 3 )) cargo test --quiet --workspace --locked --test nodes faults_power -- --show-output

canaries: sim-build ## Puts classic bugs back, one by one, and shows that the simulation notices each
	@$(SIM) canaries

sim-build:
	@cargo test --quiet --workspace --locked --test determinism --no-run

clean: ## Removes what was built; data stays
	cargo clean
