"""Trajectories in ScaleCUA's format, and the teacher that annotates them."""
