"""The progress bar of rollouts and evaluations."""

from __future__ import annotations

from typing import Protocol

from tqdm import tqdm


class Scored(Protocol):
    reward: float | None


class EpisodeBar(tqdm):
    """Progress by episode, with the successes among those scored so far.

    failures: a rollout's counts of environment failures by kind, whose sum is shown too.
    """

    def __init__(
        self,
        title: str,
        total: int,
        failures: dict[str, int] | None = None,
        leave: bool = True,
        disable: bool = False,
    ) -> None:
        super().__init__(total=total, desc=title, unit="episode", leave=leave, disable=disable)
        self.failures, self.won, self.scored = failures, 0, 0

    def finished(self, episode: Scored) -> None:
        """Counts an episode that has just ended; `rollout` calls it."""
        if episode.reward is not None:
            self.won += episode.reward
            self.scored += 1
        self.update()
        counts = {"success": f"{self.won}/{self.scored}"}
        if self.failures is not None:
            counts["failures"] = sum(self.failures.values())
        self.set_postfix(counts)
