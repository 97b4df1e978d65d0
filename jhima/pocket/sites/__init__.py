"""The five sites, and the world that a rollout may change."""
