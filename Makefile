# What a stranger runs. What comes from npm goes under .node/, conformance/node_modules/ and bench/.peers/.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export CARGO_TERM_COLOR ?= never
DEBUG := target/debug/ringfence
RELEASE := target/release/ringfence
step = @printf '\n== %s\n'

.PHONY: help try test lint deny unit conformance inspector codex proof bench

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

try: ## See it work: a demonstration that takes seconds
	cargo build --locked --release -p ringfence
	@$(RELEASE) try

test: lint deny unit conformance inspector codex ## Everything CI runs
	$(step) 'all passed'

lint: ## Format, clippy, documentation; no warning is let through
	$(step) 'cargo fmt'
	cargo fmt --all --check
	$(step) 'cargo clippy'
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(step) 'cargo doc'
	RUSTDOCFLAGS=-Dwarnings cargo doc --locked --workspace --no-deps

deny: ## Licences, sources and known weaknesses of what we depend on
	$(step) 'cargo deny'
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --locked check; \
	else echo 'SKIPPED: cargo-deny is not installed (cargo install cargo-deny); licences and advisories were not checked'; fi

unit: ## All Rust tests, with 30 s of fuzzing each
	$(step) 'what the tests need'
	@conformance/packages.sh || echo 'MISSING: the tests that need what is named above will fail and say so'
	$(step) 'tests'
	@if cargo nextest --version >/dev/null 2>&1; then \
		RINGFENCE_FUZZ_SECONDS=30 cargo nextest run --locked --workspace --no-fail-fast; \
	else \
		echo 'cargo-nextest is not installed: cargo test instead'; \
		RINGFENCE_FUZZ_SECONDS=30 cargo test --locked --workspace --lib --bins --tests --examples --no-fail-fast; \
	fi
	$(step) 'documentation tests'
	cargo test --locked --workspace --doc

$(DEBUG): FORCE
	cargo build --locked -p ringfence
FORCE:

conformance: $(DEBUG) ## The MCP conformance suite, on the debug binary
	$(step) 'conformance'
	conformance/run.sh $(DEBUG)

inspector: $(DEBUG) ## The MCP Inspector lists and calls over stdio, HTTP and SSE
	$(step) 'inspector'
	conformance/inspector.sh $(DEBUG)

codex: $(DEBUG) ## A real Codex with a scripted model, on the loopback (installs Codex from npm, some 400 MB)
	$(step) 'codex'
	conformance/codex.sh $(DEBUG)
	$(step) 'codex and codex-reply'
	conformance/codex-pair.sh $(DEBUG)

proof: codex ## The long runs: everything that is too slow for every commit, and 10 minutes of fuzzing each
	$(step) 'the long tests'
	@if cargo nextest --version >/dev/null 2>&1; then \
		RINGFENCE_PROOF=1 RINGFENCE_FUZZ_SECONDS=600 cargo nextest run --locked --workspace --no-fail-fast; \
	else \
		RINGFENCE_PROOF=1 RINGFENCE_FUZZ_SECONDS=600 cargo test --locked --workspace --lib --bins --tests --examples --no-fail-fast; \
	fi

	$(step) 'every escape through bubblewrap, and as root without user namespaces'
	RINGFENCE_TIER=bwrap cargo nextest run --locked -p ringfence --test it --no-fail-fast -E 'test(/^escape::/)'
	RINGFENCE_TIER=root RINGFENCE_ESCAPE=root/default cargo nextest run --locked -p ringfence --test it --no-fail-fast -E 'test(/^escape::/)'

bench: ## Start, memory, every tool, the fence and watched execs, next to peers, in one run
	cargo build --locked --release -p ringfence
	bench/run --binary $(RELEASE)
	bench/fence --binary $(RELEASE)
	bench/execs --binary $(RELEASE)
	bench/tools --binary $(RELEASE)
