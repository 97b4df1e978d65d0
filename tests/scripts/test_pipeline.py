"""The whole way by the commands that a user types, with vLLM where it is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from samples import ROOT, environ


@pytest.mark.skipif(not find_spec("vllm"), reason="vLLM is not installed")
def test_from_demonstrations_to_the_report_with_vllm(tmp_path):
    """train_sft.py writes, vLLM starts on what it wrote, RL ends by itself and leaves nothing."""
    command = [sys.executable, "benchmarks/pipeline.py", "quick", "--kv-gib", "0.25"]
    done = subprocess.run(
        [*command, "--out", tmp_path], cwd=ROOT, env=environ(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.endswith("everything as it should be\n")
    for role in ("decomposer", "actor"):
        assert (tmp_path / "rl" / role / "adapter_model.safetensors").exists()
    for folder in ("before", "after"):
        assert json.loads((tmp_path / folder / "results.json").read_text())["overall"]["tasks"] == 2
