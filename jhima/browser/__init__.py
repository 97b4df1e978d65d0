"""Real Chromium: processes, sessions, what runs inside pages."""
