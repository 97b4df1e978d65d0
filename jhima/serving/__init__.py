"""Replies out of vLLM."""
