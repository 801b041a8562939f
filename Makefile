# Entry points for users and contributors. Packages from npm and PyPI go under .node/, conformance/node_modules/ and
# bench/.peers/, tools of the build under .tools/.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export CARGO_TERM_COLOR ?= never
# Twice as many tests at a time as there are processors: many wait, for processes, pages and deadlines.
export NEXTEST_TEST_THREADS ?= $(shell echo $$((2 * $$(nproc))))
DEBUG := target/debug/ringfence
CONFORMANCE_CLIENT := target/debug/examples/conformance_client
OAUTH_CLIENT := target/debug/examples/oauth_client
step = @printf '\n== %s\n'
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
DENY_VERSION := 0.20.2
DENY := .tools/bin/cargo-deny

# Steps of `make test`, in this order; each is also a target.
STEPS := commits format clippy docs deny unit doctests instructions conformance conformance-client conformance-oauth inspector sdk clients-short everyday codex smoke-short codexpair

# Long runs, too slow for every commit.
PROOF_STEPS := msrv codex smoke codexpair connect-clients clients codex-page upstreams longtests bwrapescapes rootescapes mountsescapes hosts install-check

# Kinds of packages. Each is a target, and goes to target/dist/packages.
PACKAGES := npm wheel deb tarball

# run_steps,STEP...: makes every step, then prints a summary. Fails if a step failed.
define run_steps
@failed=() summary=; \
for step in $(1); do \
	from=$$SECONDS; \
	if $(MAKE) --no-print-directory $$step; then result=ok; else result=FAILED; failed+=($$step); fi; \
	summary+=$$(printf '%-18s %-7s %5d s' $$step $$result $$((SECONDS - from)))$$'\n'; \
done; \
printf '\n== summary\n%s' "$$summary"; \
if [ $${#failed[@]} = 0 ]; then echo 'all passed'; \
else echo "failed: $${failed[*]} (repeat one with: make $${failed[0]})"; exit 1; fi
endef

.PHONY: help try test lint advisories $(STEPS) proof $(PROOF_STEPS) bench binary packages $(PACKAGES)

help: ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 26

try: ## Build without optimisation (minutes, once) and run a demonstration that takes seconds
	@[ -x $(DEBUG) ] || echo 'Building Ringfence and its packages: three to five minutes on two cores, the first time only.'
	@cargo build --locked --workspace --bin ringfence
	@$(DEBUG) try

test: ## Run everything that CI runs; continue after a failed step
	$(call run_steps,$(STEPS))

lint: format clippy docs ## Check format, clippy and documentation; every warning is an error

format: ## Check the format of the code
	$(step) 'cargo fmt'
	cargo fmt --all --check

clippy: ## Run clippy; every warning is an error
	$(step) 'cargo clippy'
	cargo clippy --locked --workspace --all-targets -- -D warnings

docs: ## Build the code's documentation; every warning is an error
	$(step) 'cargo doc'
	RUSTDOCFLAGS=-Dwarnings cargo doc --locked --workspace --no-deps --document-private-items

commits: ## Check the subjects of new commits
	$(step) 'commit subjects'
	@.ci/commits

msrv: ## Check the code with the oldest supported Rust release (rust-version in Cargo.toml)
	$(step) "cargo check with Rust $(MSRV)"
	@if ! command -v rustup >/dev/null; then \
		echo 'SKIPPED: rustup is not installed, so the oldest supported Rust release was not tried'; \
	else \
		cargo +$(MSRV) --version >/dev/null 2>&1 || rustup toolchain install $(MSRV) --profile minimal; \
		cargo +$(MSRV) check --locked --workspace --target-dir target/msrv; \
	fi

deny: $(DENY) ## Check licences and sources of dependencies
	$(step) 'cargo deny'
	@# A build downloads the packages of this platform alone; the check reads those of all.
	@cargo fetch --locked
	$(DENY) --offline --locked check --hide-inclusion-graph bans licenses sources

advisories: $(DENY) ## Check dependencies for known vulnerabilities (fetches the advisory database from GitHub)
	$(step) 'cargo deny: advisories'
	$(DENY) --locked check advisories

# Unoptimised and without debug information: it is built faster than it would run.
$(DENY):
	CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug --no-default-features --root .tools cargo-deny@$(DENY_VERSION)

unit: ## Run all Rust tests
	$(step) 'packages for the tests'
	@conformance/packages.sh || echo 'MISSING: tests that need the packages named above will fail and say so'
	$(step) 'tests'
	@if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run --locked --workspace --no-fail-fast; \
	else \
		echo 'cargo-nextest is not installed: using cargo test instead'; \
		cargo test --locked --workspace --lib --bins --tests --examples --no-fail-fast; \
	fi

doctests: ## Run the examples in the code's documentation
	$(step) 'documentation tests'
	cargo test --locked --workspace --doc

# Programs are selected from the whole workspace, as the tests build it: selected by package, they would be built
# again, because a feature of the client library is only used by its own tests and examples.
$(DEBUG): FORCE
	cargo build --locked --workspace --bin ringfence
FORCE:

conformance: $(DEBUG) ## Run the MCP conformance suite on the debug binary
	$(step) 'conformance'
	conformance/run.sh $(DEBUG)

$(CONFORMANCE_CLIENT): FORCE
	cargo build --locked --workspace --example conformance_client

conformance-client: $(CONFORMANCE_CLIENT) ## Run the MCP conformance suite's client scenarios on the client library
	$(step) 'conformance of the client'
	conformance/client.sh $(CONFORMANCE_CLIENT)

$(OAUTH_CLIENT): FORCE
	cargo build --locked --workspace --example oauth_client

conformance-oauth: $(OAUTH_CLIENT) ## Check the client library's OAuth against a real authorization server
	$(step) 'OAuth of the client'
	conformance/oauth.sh $(OAUTH_CLIENT)

inspector: $(DEBUG) ## List and call tools with the MCP Inspector over stdio, HTTP and SSE
	$(step) 'inspector'
	conformance/inspector.sh $(DEBUG)

sdk: $(DEBUG) ## Call every tool with the TypeScript and Python SDKs, whose validators must accept its results
	$(step) 'sdk'
	conformance/sdk.sh $(DEBUG)

everyday: $(DEBUG) ## Run create-vite, npm with husky and pre-commit in the sandbox
	$(step) 'everyday tools'
	conformance/everyday.sh $(DEBUG)

codex: $(DEBUG) ## Run a real Codex with a scripted model on the loopback (installs Codex from npm, some 400 MB)
	$(step) 'codex'
	conformance/codex.sh $(DEBUG)

smoke: $(DEBUG) ## Run four Codex releases, in `codex exec` and the TUI, over stdio and HTTP, with and without a JWT
	$(step) 'smoke'
	conformance/smoke.py $(DEBUG)

smoke-short: $(DEBUG) ## Run one Codex release once over stdio and over HTTP with a JWT
	$(step) 'smoke, short'
	conformance/smoke.py --short $(DEBUG)

clients: $(DEBUG) ## Run every client of docs/clients/matrix.md over each of its transports (installs them, some 2.5 GB)
	$(step) 'clients'
	conformance/clients/run.py $(DEBUG)

clients-short: $(DEBUG) ## Run four small clients of docs/clients/matrix.md
	$(step) 'clients, short'
	conformance/clients/run.py --short $(DEBUG)

codex-page: npm ## Run the commands of docs/clients/codex.md in an empty home, from the npm packages
	$(step) 'Codex page'
	conformance/codex-page.py target/dist/packages

codexpair: $(DEBUG) ## Run the tools `codex` and `codex-reply` with a real Codex
	$(step) 'codex and codex-reply'
	conformance/codex-pair.sh $(DEBUG)

connect-clients: $(DEBUG) ## Have four real clients read back what `ringfence connect` wrote (installs them from npm, some 1 GB)
	$(step) 'connect'
	conformance/connect.sh $(DEBUG)

upstreams: $(DEBUG) ## Call tools of twelve real MCP servers, each in its sandbox (installs them from npm and PyPI)
	$(step) 'real servers behind ringfence'
	conformance/upstreams.sh $(DEBUG)

proof: ## Run the tests that are too slow for every commit, with 10 minutes of fuzzing each; continue after a failure
	$(call run_steps,$(PROOF_STEPS))

longtests: ## Run all Rust tests at full length
	$(step) 'long tests'
	@if cargo nextest --version >/dev/null 2>&1; then \
		RINGFENCE_PROOF=1 RINGFENCE_FUZZ_SECONDS=600 cargo nextest run --locked --workspace --no-fail-fast; \
	else \
		RINGFENCE_PROOF=1 RINGFENCE_FUZZ_SECONDS=600 cargo test --locked --workspace --lib --bins --tests --examples --no-fail-fast; \
	fi

bwrapescapes: ## Run every escape test in the tier `bwrap`
	$(step) 'every escape test in the tier bwrap'
	RINGFENCE_TIER=bwrap cargo nextest run --locked -p ringfence --test it --no-fail-fast -E 'test(/^escape::/)'

rootescapes: ## Run every escape test as root without user namespaces
	$(step) 'every escape test as root without user namespaces'
	RINGFENCE_TIER=root RINGFENCE_ESCAPE=root/default cargo nextest run --locked -p ringfence --test it --no-fail-fast -E 'test(/^escape::/)'

mountsescapes: ## Run every escape test in the tier `mounts`, without Landlock
	$(step) 'every escape test in the tier mounts'
	RINGFENCE_TIER=mounts cargo nextest run --locked -p ringfence --test it --no-fail-fast -E 'test(/^escape::/)'

hosts: $(DEBUG) ## Boot the kernels of four Debian releases in qemu and try the sandbox on each (downloads 100 MB)
	$(step) 'kernels'
	conformance/hosts.sh $(DEBUG)

binary: ## Build the binary of the packages, for glibc 2.17 and newer (needs valgrind; installs zig from PyPI under .tools/, 400 MB)
	$(step) 'binary for packages'
	packaging/binary.sh

packages: $(PACKAGES) ## Make all packages, in target/dist/packages

npm: binary ## Pack the npm packages, for `npx ringfence`
	packaging/npm.sh

wheel: binary ## Make the wheel, for `uvx ringfence`
	packaging/wheel.sh

deb: binary ## Make the Debian package
	packaging/deb.sh

tarball: binary ## Make the archive with the binary, and its checksum
	packaging/tarball.sh

install-check: packages ## Install each package in an empty home or a new Debian system, and use it (as root; 700 MB)
	$(step) 'install-check'
	packaging/check.sh

# BINARY=FILE measures another binary than the one of the packages; ONLY=NAME a section, or rows by a part of their names.
bench: $(if $(BINARY),,binary) ## Measure everything next to peers, in one run and one table; QUICK=1 takes under five minutes
	bench/run $(if $(BINARY),--binary '$(BINARY)') $(if $(QUICK),--quick) $(if $(ONLY),--only '$(ONLY)')

instructions: $(DEBUG) ## Compare instruction counts with the accepted ones; ACCEPT=1 accepts them
	$(step) 'tests of the bench'
	bench/tests.py
	$(step) 'instruction counts'
	bench/instructions $(DEBUG) $(if $(ACCEPT),--accept)
