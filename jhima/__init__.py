"""JHiMA-WebRL: joint hierarchical multi-agent reinforcement learning for web agents."""
