"""Replies out of vLLM."""

import os

# vLLM reads these when it is first imported, which is after this package.
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
