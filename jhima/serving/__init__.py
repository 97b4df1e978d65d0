"""Replies out of vLLM, and of an API."""

import os

# vLLM reads these when it is first imported, which is after this package.
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# A forked process would hold copies of locks that this process's threads never release.
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
