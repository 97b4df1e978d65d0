"""Qwen2.5-VL's parts: pictures to features, positions."""
