"""WebArena: task files, evaluators, judge, logins, replicas."""
