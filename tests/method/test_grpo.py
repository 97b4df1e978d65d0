"""The paper's equations against exact fractions and a token-by-token reference."""

from __future__ import annotations

import doctest
import itertools
from fractions import Fraction

import pytest
import torch

from jhima import grpo


def test_worked_examples():
    failures, tests = doctest.testmod(grpo)
    assert tests >= 8 and failures == 0


@pytest.mark.parametrize("K, M", [(1, 1), (2, 3), (3, 2)])
def test_advantages_are_exact_fractions(K, M):
    for bits in itertools.product((0, 1), repeat=K * M):
        R = [[Fraction(bits[i * M + j]) for j in range(M)] for i in range(K)]
        S = [sum(row) / M for row in R]
        A_A = [[r - s for r in row] for row, s in zip(R, S)]
        A_D = [s - sum(S) / K for s in S]
        rewards = torch.tensor(bits, dtype=torch.float64).reshape(K, M)
        scores = grpo.plan_scores(rewards)
        assert [Fraction(a).limit_denominator(1000) for a in scores.tolist()] == S
        assert [
            [Fraction(a).limit_denominator(1000) for a in row]
            for row in grpo.actor_advantages(rewards).tolist()
        ] == A_A
        assert [
            Fraction(a).limit_denominator(1000) for a in grpo.decomposer_advantages(scores).tolist()
        ] == A_D


def test_a_lost_episode_leaves_its_groups_mean():
    nan = float("nan")
    R = torch.tensor([[1.0, 0.0, nan], [nan, nan, nan], [1.0, 1.0, 1.0]])
    assert torch.equal(
        grpo.actor_advantages(R), torch.tensor([[0.5, -0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    )
    S = grpo.plan_scores(R)
    assert S[0] == 0.5 and S[1].isnan() and S[2] == 1.0
    assert torch.equal(
        grpo.decomposer_advantages(S), torch.tensor([-0.25, 0.0, 0.25])
    )  # over two plans, not three
    # Never a zero reward: with 0 in place of NaN the first plan's mean, and all its advantages,
    # would differ.
    assert not torch.equal(grpo.actor_advantages(R.nan_to_num(0.0))[0], grpo.actor_advantages(R)[0])


def test_equal_scores_give_exactly_zero():
    """In floats the mean of equal numbers may not equal them: 5/7 three times is 6e-8 off."""
    for K, M, dtype in itertools.product(range(1, 9), range(1, 23), (torch.float32, torch.float64)):
        wins = torch.arange(M + 1)[:, None, None]  # of every plan, in group 0 to M
        R = (torch.arange(M) < wins).expand(-1, K, -1).to(dtype)  # [M + 1, K, M]
        for std in (False, True):
            tied = grpo.decomposer_advantages(grpo.plan_scores(R), std)
            assert not tied.any(), (K, M, dtype, std)
            uniform = grpo.actor_advantages(R[[0, -1]], std)  # all lost, all won
            assert not uniform.any(), (K, M, dtype, std)
    assert not grpo.actor_advantages(torch.full((2, 3, 7), 0.1 + 0.2 / 3), True).any()  # milestones


def test_a_score_that_is_the_mean_gives_exactly_zero_and_no_other_does():
    for M in range(1, 23):
        for wins in itertools.product(range(0, M + 1, max(1, M // 7)), repeat=3):
            A = grpo.decomposer_advantages(torch.tensor(wins) / M, normalize_std=True)
            assert [a == 0 for a in A.tolist()] == [3 * w == sum(wins) for w in wins], (M, wins)
    lost = torch.tensor([[1.0] * 4 + [float("nan")] * 3, [1.0] * 7])  # 4 of 4 known, and 7 of 7
    assert not grpo.decomposer_advantages(grpo.plan_scores(lost)).any()


def test_std_normalisation_is_that_of_the_group():
    R = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    expected = (R - R.mean(-1, keepdim=True)) / (R.std(-1, correction=0, keepdim=True) + grpo.DELTA)
    assert torch.allclose(grpo.actor_advantages(R, normalize_std=True), expected)
    assert torch.equal(grpo.actor_advantages(R, normalize_std=True)[1], torch.zeros(4))


def reference_loss(logp, old, advantage, reference, eps, beta, constant):
    """Eqs. 6 and 7 written out token by token in Python floats."""
    import math

    total = 0.0
    for lp, lo, a, lr in zip(logp, old, advantage, reference):
        r = math.exp(lp - lo)
        surrogate = min(r * a, min(max(r, 1 - eps), 1 + eps) * a)
        total += surrogate - beta * (math.exp(lr - lp) - (lr - lp) - 1)
    return -total / constant


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_loss_and_gradient_equal_the_reference(beta):
    torch.manual_seed(0)
    logp, old, ref = (-torch.rand(40, dtype=torch.float64) * 3 for _ in range(3))
    advantage = torch.randn(40, dtype=torch.float64)
    logp.requires_grad_()
    loss = grpo.policy_loss(logp, old, advantage, 7.0, 0.2, beta, ref)
    values = [t.tolist() for t in (logp.detach(), old, advantage, ref)]
    assert loss.item() == pytest.approx(reference_loss(*values, 0.2, beta, 7.0), abs=1e-12)
    loss.backward()
    for u in range(40):  # central differences, one token at a time
        up, down = ([*values[0]] for _ in range(2))
        up[u] += 1e-6
        down[u] -= 1e-6
        slope = (
            reference_loss(up, *values[1:], 0.2, beta, 7.0)
            - reference_loss(down, *values[1:], 0.2, beta, 7.0)
        ) / 2e-6
        assert logp.grad[u].item() == pytest.approx(slope, abs=1e-6)


def test_losses_of_parts_add_up():
    torch.manual_seed(1)
    logp, old, advantage = (torch.randn(30, dtype=torch.float64) for _ in range(3))
    whole = grpo.policy_loss(logp, old, advantage, 5.0)
    for cuts in ([1] * 30, [7, 23], [30], [29, 1]):
        parts = zip(*(t.split(cuts) for t in (logp, old, advantage)))
        assert sum(grpo.policy_loss(*part, 5.0) for part in parts).item() == pytest.approx(
            whole.item(), abs=1e-12
        )


def test_on_the_first_pass_the_gradient_is_advantage_times_score():
    """Ratio 1 is a tie of the two branches of the min; it must not halve the gradient."""
    logp = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantage = torch.tensor([0.75, -0.25, 0.0])
    grpo.policy_loss(logp, logp.detach(), advantage, constant=1.0).backward()
    assert torch.equal(logp.grad, -advantage)


def test_the_decomposers_estimate_is_k_minus_1_over_k_of_the_policy_gradient():
    """The appendix's claim on an enumerable problem: three plans with known success rates, all
    K-samples enumerated.
    """
    K, q, theta = (
        3,
        torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64),
        torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64),
    )
    p = theta.softmax(0)
    true = p * (q - p @ q)  # d/dtheta of sum_d p(d) q(d)
    estimate, with_std = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for plans in itertools.product(range(3), repeat=K):
        weight = torch.prod(p[list(plans)])
        for name, total in ((False, estimate), (True, with_std)):
            for i, A in zip(plans, grpo.decomposer_advantages(q[list(plans)], normalize_std=name)):
                score = -p.clone()
                score[i] += 1
                total += weight * A * score / K
    assert torch.allclose(estimate, (K - 1) / K * true, atol=1e-12)
    assert not torch.allclose(with_std / with_std.norm(), true / true.norm(), atol=1e-3)


def test_simulated_groups_agree_with_the_claim():
    """The same with M episodes of reward 0 or 1 a plan, so that S is an estimate: 200,000
    simulated groups of K = 3, M = 4.
    """
    groups, K, M = 200_000, 3, 4
    q, theta = (
        torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64),
        torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64),
    )
    p = theta.softmax(0)
    true = p * (q - p @ q)
    draw = torch.Generator().manual_seed(0)
    plans = torch.multinomial(p, groups * K, replacement=True, generator=draw).view(groups, K)
    R = (
        torch.rand(groups, K, M, generator=draw, dtype=torch.float64) < q[plans][..., None]
    ).double()
    score = torch.eye(3, dtype=torch.float64)[plans] - p  # grad log p of each plan [groups, K, 3]
    mean, error = {}, {}
    for std in (False, True):
        estimate = (grpo.decomposer_advantages(grpo.plan_scores(R), std)[..., None] * score).mean(
            1
        )  # [groups, 3]
        mean[std], error[std] = estimate.mean(0), estimate.std(0) / groups**0.5
    assert (
        (mean[False] - (K - 1) / K * true).abs() < 4 * error[False]
    ).all()  # within Monte Carlo error
    assert (
        (mean[False] - true).abs() > 20 * error[False]
    ).any()  # and by the factor, not without it
    aside = mean[True] - (mean[True] @ true) / (true @ true) * true  # what no factor explains
    assert (aside.abs() > 10 * error[True]).any()
