# make demo: the whole method on this machine, stage by stage.   make test: the tests.   Both set up what they need.
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

.PHONY: setup demo test clean
.DELETE_ON_ERROR:

setup: $(VENV)/ready
	@$(py) -m jhima.browser --install

# torch first and alone: on a machine without a GPU its CPU build, not gigabytes of CUDA.
$(VENV)/ready: requirements.txt requirements-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(py) -m pip install --quiet --upgrade pip
	$(py) -m pip install --quiet $(if $(filter requirements-cpu.txt,$(requirements)),--extra-index-url $(TORCH_CPU_INDEX)) \
		$$(grep '^torch==' requirements-cpu.txt)
	$(py) -m pip install --quiet -r $(requirements)
	@touch $@

test: setup
	$(py) -m pytest -q tests

demo: setup
	$(py) -m jhima.pocket demo --out $(RUN)

clean:
	rm -rf $(VENV) runs checkpoints
