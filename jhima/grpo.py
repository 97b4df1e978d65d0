"""Two-level GRPO: advantages and loss, as pure functions.

For one task: K plans, M episodes per plan, rewards R [K, M] in {0, 1}. NaN marks an episode that
says nothing about the agent (a broken browser or site): it leaves its group's mean and gets
advantage 0.

How it differs from textbook GRPO, as in the paper's section 4.3 (Dr. GRPO, Liu et al. 2025):
1. no division by the group's standard deviation (normalize_std=True brings it back),
2. no division by the response's length (normalize_length=True and each token's weight bring it
   back): a loss is a SUM over tokens, divided by a constant that is fixed before the rollout, so
   splitting samples into micro-batches and GPUs, sorting or skipping them cannot change it,
3. the baseline of an actor's episode is the mean under the same plan; of a plan, the mean over the
   task's plans.
"""

from __future__ import annotations

import torch
from torch import Tensor

DELTA = 1e-4  # keeps the division by a group's standard deviation finite


def _centred(x: Tensor, normalize_std: bool) -> Tensor:
    """x minus its mean over the last dimension, NaN aside.

    Exactly 0 for what equals the mean: in floats three plans of 5/7 have a mean that is 6e-8 off,
    and would be trained on that. normalize_std: divided by (its standard deviation + DELTA).
    """
    mean = x.nanmean(-1, keepdim=True)
    advantage = (x - mean).masked_fill(torch.isclose(x, mean, rtol=2e-6, atol=0.0), 0.0)
    if normalize_std:
        advantage = advantage / (advantage.square().nanmean(-1, keepdim=True).sqrt() + DELTA)
    return advantage.nan_to_num(nan=0.0)


def actor_advantages(R: Tensor, normalize_std: bool = False) -> Tensor:
    """Eq. 5: A^A_ij = R_ij - mean_j R_ij, episodes of one plan compared with each other.

    R [..., K, M]; returns [..., K, M]. Every token of every action of episode ij gets A^A_ij.

    >>> actor_advantages(torch.tensor([[1., 0., 0., 0.], [1., 1., 1., 1.]]))
    tensor([[ 0.7500, -0.2500, -0.2500, -0.2500],
            [ 0.0000,  0.0000,  0.0000,  0.0000]])
    """
    return _centred(R, normalize_std)


def plan_scores(R: Tensor) -> Tensor:
    """Eq. 8: S_i = mean_j R_ij, how well the actor does under plan i.

    R [..., K, M]; returns [..., K].

    >>> plan_scores(torch.tensor([[1., 0., 0., 0.], [1., 1., 1., float("nan")]]))
    tensor([0.2500, 1.0000])
    """
    return R.nanmean(-1)


def decomposer_advantages(S: Tensor, normalize_std: bool = False) -> Tensor:
    """Eq. 9: A^D_i = S_i - mean_i S_i, plans of one task compared with each other.

    S [..., K]; returns [..., K]. Every token of plan i gets A^D_i.

    >>> decomposer_advantages(torch.tensor([0.25, 1.0, 0.25]))
    tensor([-0.2500,  0.5000, -0.2500])
    """
    return _centred(S, normalize_std)


def token_ratio(logp: Tensor, logp_old: Tensor) -> Tensor:
    """Eq. 6: r = pi_theta / pi_theta_old of each sampled token. Both [n]; returns [n].

    >>> token_ratio(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.0]))
    tensor([1.0000, 0.3679])
    """
    return (logp - logp_old).exp()


def clipped_surrogate(
    ratio: Tensor, advantage: Tensor, eps: float, eps_high: float | None = None
) -> Tensor:
    """The min-term of eqs. 7 and 10: min(r A, clip(r, 1 - eps, 1 + eps_high) A). All [n].

    eps_high: None is the paper's eps; a larger one is clip-higher (Yu et al. 2025, DAPO): a token
    that did well may gain more probability than one that did badly may lose.

    >>> clipped_surrogate(torch.tensor([1.5, 1.5, 0.5]), torch.tensor([1.0, -1.0, -1.0]), eps=0.2)
    tensor([ 1.2000, -1.5000, -0.8000])
    """
    if eps_high is None:
        eps_high = eps
    return torch.minimum(ratio * advantage, ratio.clamp(1 - eps, 1 + eps_high) * advantage)


def k3(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """D_KL(pi || pi_ref) of eqs. 7 and 10 by the k3 estimator: exp(d) - d - 1, d = logp_ref - logp.

    Its mean is the divergence where the tokens were drawn from pi, the first argument. Both [n];
    returns [n] >= 0.

    >>> k3(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -2.0]))
    tensor([0.0000, 0.3679])
    """
    d = logp_ref - logp
    return d.expm1() - d


def sampler_correction(logp_old: Tensor, logp_sampler: Tensor, cap: float) -> Tensor:
    """Truncated importance sampling (Yao et al. 2025): min(pi_old / pi_sampler, cap) per token.

    The sampler's kernels (vLLM, bf16) give the same token another probability than the trainer's
    do; this weighs each token as if the trainer had sampled it. logp_old, logp_sampler [n];
    returns [n], without gradient.

    >>> sampler_correction(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -3.0]), cap=2.0)
    tensor([1., 2.])
    """
    return (logp_old - logp_sampler).exp().clamp(max=cap).detach()


def policy_loss(
    logp: Tensor,
    logp_old: Tensor,
    advantage: Tensor,
    constant: float,
    eps: float = 0.2,
    beta: float = 0.0,
    logp_ref: Tensor | None = None,
    eps_high: float | None = None,
    correction: Tensor | float = 1.0,
    weight: Tensor | float = 1.0,
) -> Tensor:
    """Eqs. 7 and 10, negated: -sum over tokens of weight * (correction * surrogate - beta * KL),
    divided by one constant.

    In the paper `correction` (sampler_correction) and `weight` (see loss_constants) are 1. logp,
    logp_old, advantage, logp_ref, correction, weight [n]: one entry per sampled token, of any
    number of samples. The losses of disjoint sets of tokens add up to the loss of their union,
    whatever the split.

    >>> one, zero = torch.ones(2), torch.zeros(2)
    >>> policy_loss(zero, zero, torch.tensor([1.0, -0.5]), constant=4.0)
    tensor(-0.1250)
    """
    ratio = token_ratio(logp, logp_old)
    objective = correction * clipped_surrogate(ratio, advantage, eps, eps_high)
    if beta:
        objective = objective - beta * k3(logp, logp_ref)
    return -(weight * objective).sum() / constant


def loss_constants(
    tasks: int,
    K: int,
    M: int,
    T: int,
    action_tokens: int,
    plan_tokens: int,
    normalize_length: bool = False,
) -> tuple[float, float]:
    """What the actor's and the decomposer's losses are divided by: sequences x token budget.

    An actor's episode may take T actions of `action_tokens` tokens, so its budget is
    T * action_tokens. Fixed before the rollout: nothing that happens in it, not even a lost
    episode, changes how much one token weighs. With normalize_length each token has a weight
    instead: of a plan 1 / its length (standard GRPO), of an action 1 / |tau| x 1 / |a|, the
    episode's actions and the action's tokens (M-GRPO, Wei et al. 2025).

    >>> loss_constants(tasks=8, K=3, M=7, T=15, action_tokens=64, plan_tokens=256)
    (161280.0, 6144.0)
    >>> loss_constants(8, K=3, M=7, T=15, action_tokens=64, plan_tokens=256, normalize_length=True)
    (168.0, 24.0)
    """
    if normalize_length:
        return float(tasks * K * M), float(tasks * K)
    return float(tasks * K * M * T * action_tokens), float(tasks * K * plan_tokens)
