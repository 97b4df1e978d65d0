# make demo: the whole method on this machine, stage by stage.   make ablation: then, Table 2.   make test: the tests.
# make gpu-check: the same stages with vLLM on this machine's GPU, the small model's and the 7B's shape.
# All set up what they need.
# CHROMIUM=/path/to/chromium uses that browser; PYTHON=python3.12 another interpreter; VENV=DIR another environment.
PYTHON ?= python3
VENV ?= .venv
RUN ?= runs/demo
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

py := $(VENV)/bin/python
requirements := $(shell nvidia-smi >/dev/null 2>&1 && echo requirements.txt || echo requirements-cpu.txt)
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM = false
export PATH := $(abspath $(VENV))/bin:$(PATH)

.PHONY: setup demo ablation test gpu-check clean
.DELETE_ON_ERROR:

# Chromium: CHROMIUM, one on PATH, (as root) Debian's package, or Playwright's download.
setup: $(VENV)/ready
	@$(py) -m jhima.browser.chromium 2>/dev/null \
		|| { apt-get update && apt-get install -y --no-install-recommends chromium-headless-shell; } >/dev/null 2>&1 \
		|| $(VENV)/bin/playwright install --with-deps chromium >/dev/null 2>&1 \
		|| $(py) -m jhima.browser.chromium

# torch first and alone: on a machine without a GPU its CPU build, not gigabytes of CUDA.
$(VENV)/ready: requirements.txt requirements-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(py) -m pip install --quiet --upgrade pip
	$(py) -m pip install --quiet --retries 1 \
		$(if $(filter requirements-cpu.txt,$(requirements)),--extra-index-url $(TORCH_CPU_INDEX)) \
		$$(grep '^torch==' requirements-cpu.txt)
	$(py) -m pip install --quiet -r $(requirements)
	@touch $@

test: setup
	$(py) -m ruff check .
	$(py) -m ruff format --check .
	$(py) -m pytest -q -n 2 --dist loadfile tests

gpu-check: setup
	$(py) benchmarks/pipeline.py pocket
	$(py) benchmarks/pipeline.py 7b

# ---- The demo: the pipeline of the README on the pocket arena, with settings for two CPU cores ----

PORT ?= 8399
BASE := jhima/pocket/base
tokens := --plan-tokens 64 --action-tokens 48
sft := --model $(BASE) --data $(RUN)/demos/meta.json --annotations $(RUN)/annotations.jsonl --accumulate 1
decomposer := --micro-batch 4 --epochs 4 --lr 1e-3
actor := --micro-batch 8 --epochs 2 --lr 5e-4
rl := --tasks pocket-rl --K 3 --M 4 --T 10 --temperature 1.2 --tasks-per-batch 8 --limit-batches 10 --lr 5e-4 --micro-batch 16 --concurrency 12 $(tokens)
eval := --tasks pocket-eval --limit 100 --runs 1 --T 10 --concurrency 12 $(tokens)
models := --decomposer $(RUN)/decomposer --actor $(RUN)/actor
# Two processes on a CPU, else one a GPU.
launch := deepspeed $(if $(filter requirements-cpu.txt,$(requirements)),--num_gpus 2)

demo: setup
	$(py) -m jhima.pocket demos --tasks pocket-demos --limit 175 --concurrency 12 --out $(RUN)/demos
	@$(py) -m jhima.pocket teacher --port $(PORT) & trap "kill $$!" EXIT; set -x; \
		$(py) annotate.py --data $(RUN)/demos/meta.json --out $(RUN)/annotations.jsonl \
			--base-url http://127.0.0.1:$(PORT)/v1 --model pocket-teacher
	$(launch) train_sft.py --role decomposer $(sft) $(decomposer) --out $(RUN)/decomposer
	$(launch) train_sft.py --role actor $(sft) $(actor) --out $(RUN)/actor
	$(py) evaluate.py $(models) $(eval) --out $(RUN)/before
	$(launch) train_rl.py $(models) $(rl) --out $(RUN)/rl
	$(py) evaluate.py $(models) --adapters $(RUN)/rl $(eval) --out $(RUN)/after
	$(py) -m jhima.results.figures $(RUN)/rl $(RUN)/learning-curve.png
	$(py) -m jhima.results.report $(RUN)/rl --out $(RUN)/report.html
	$(py) -m jhima.results.subgoals $(RUN)/before $(RUN)/after --out $(RUN)/figure-2.png
	$(py) evaluate.py --compare $(RUN)/before $(RUN)/after

# Table 2 on the pocket arena, from what the demo fine-tuned: about three hours on two cores (benchmarks/table_2.py).
ablation: setup
	$(launch) train_sft.py --role actor --no-plan $(sft) $(actor) --out $(RUN)/actor-no-plan
	$(py) benchmarks/table_2.py --sft $(RUN) --out runs/ablation

clean:
	rm -rf $(VENV) runs checkpoints
