# What a stranger runs. What comes from npm and PyPI goes under .node/, conformance/node_modules/ and bench/.peers/.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export CARGO_TERM_COLOR ?= never
DEBUG := target/debug/ringfence
RELEASE := target/release/ringfence
step = @printf '\n== %s\n'

# What `make test` runs, in this order; each is a target of its own.
STEPS := format clippy docs deny unit doctests conformance inspector sdk everyday codex codexpair

# The long runs: everything that is too slow for every commit.
PROOF_STEPS := codex codexpair longtests bwrapescapes rootescapes

# run_steps,STEP...: makes every step, then says how each went. Fails when one of them did.
define run_steps
@failed=() summary=; \
for step in $(1); do \
	from=$$SECONDS; \
	if $(MAKE) --no-print-directory $$step; then result=ok; else result=FAILED; failed+=($$step); fi; \
	summary+=$$(printf '%-12s %-7s %5d s' $$step $$result $$((SECONDS - from)))$$'\n'; \
done; \
printf '\n== summary\n%s' "$$summary"; \
if [ $${#failed[@]} = 0 ]; then echo 'all passed'; \
else echo "failed: $${failed[*]} (repeat one with: make $${failed[0]})"; exit 1; fi
endef

.PHONY: help try test lint $(STEPS) proof $(PROOF_STEPS) bench

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

try: ## See it work: a demonstration that takes seconds
	cargo build --locked --release -p ringfence
	@$(RELEASE) try

test: ## Everything CI runs; a failed step does not keep the next from running
	$(call run_steps,$(STEPS))

lint: format clippy docs ## Format, clippy, documentation; no warning is let through

format: ## The code is formatted
	$(step) 'cargo fmt'
	cargo fmt --all --check

clippy: ## No warning of clippy's
	$(step) 'cargo clippy'
	cargo clippy --locked --workspace --all-targets -- -D warnings

docs: ## The code's documentation builds without a warning
	$(step) 'cargo doc'
	RUSTDOCFLAGS=-Dwarnings cargo doc --locked --workspace --no-deps

deny: ## Licences, sources and known weaknesses of what we depend on
	$(step) 'cargo deny'
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --locked check; \
	else echo 'SKIPPED: cargo-deny is not installed (cargo install cargo-deny); licences and advisories were not checked'; fi

unit: ## All Rust tests
	$(step) 'what the tests need'
	@conformance/packages.sh || echo 'MISSING: the tests that need what is named above will fail and say so'
	$(step) 'tests'
	@if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run --locked --workspace --no-fail-fast; \
	else \
		echo 'cargo-nextest is not installed: cargo test instead'; \
		cargo test --locked --workspace --lib --bins --tests --examples --no-fail-fast; \
	fi

doctests: ## The examples in the code's documentation
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

sdk: $(DEBUG) ## Every tool by the TypeScript and Python SDKs, whose validators must accept its results
	$(step) 'sdk'
	conformance/sdk.sh $(DEBUG)

everyday: $(DEBUG) ## create-vite, npm with husky and pre-commit in the sandbox
	$(step) 'everyday tools'
	conformance/everyday.sh $(DEBUG)

codex: $(DEBUG) ## A real Codex with a scripted model, on the loopback (installs Codex from npm, some 400 MB)
	$(step) 'codex'
	conformance/codex.sh $(DEBUG)

codexpair: $(DEBUG) ## The tools `codex` and `codex-reply` over a real Codex
	$(step) 'codex and codex-reply'
	conformance/codex-pair.sh $(DEBUG)

proof: ## The long runs, with 10 minutes of fuzzing each; a failed one does not keep the next from running
	$(call run_steps,$(PROOF_STEPS))

longtests: ## All Rust tests at full length
	$(step) 'the long tests'
	@if cargo nextest --version >/dev/null 2>&1; then \
		RINGFENCE_PROOF=1 RINGFENCE_FUZZ_SECONDS=600 cargo nextest run --locked --workspace --no-fail-fast; \
	else \
		RINGFENCE_PROOF=1 RINGFENCE_FUZZ_SECONDS=600 cargo test --locked --workspace --lib --bins --tests --examples --no-fail-fast; \
	fi

bwrapescapes: ## Every escape through bubblewrap
	$(step) 'every escape through bubblewrap'
	RINGFENCE_TIER=bwrap cargo nextest run --locked -p ringfence --test it --no-fail-fast -E 'test(/^escape::/)'

rootescapes: ## Every escape as root without user namespaces
	$(step) 'every escape as root without user namespaces'
	RINGFENCE_TIER=root RINGFENCE_ESCAPE=root/default cargo nextest run --locked -p ringfence --test it --no-fail-fast -E 'test(/^escape::/)'

bench: ## Start, memory, every tool, the fence and watched execs, next to peers, in one run
	cargo build --locked --release -p ringfence
	bench/run --binary $(RELEASE)
	bench/fence --binary $(RELEASE)
	bench/execs --binary $(RELEASE)
	bench/tools --binary $(RELEASE)
