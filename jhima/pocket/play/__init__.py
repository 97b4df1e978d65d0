"""The oracle at work: tasks checked, demonstrations recorded, plans compared."""
