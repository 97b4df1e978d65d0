"""train_rl.py's gradients against the paper's objectives written out, and against TRL's losses.

The reference knows nothing of ours but the episodes: plain Python over tasks, plans, episodes,
steps and tokens, with log-probs by transformers' own multimodal forward pass, one sample at a time.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from samples import ROOT, screenshot, stock_logp

import train_rl
from jhima import grpo
from jhima.actions import Action, Turn
from jhima.episodes import Episode, Group, Plan, Step, Task
from jhima.policy import Sample, load_policy
from jhima.prompts import Prompt
from jhima.training.checkpoints import Learner

B, K, M, T, ACTION_TOKENS, PLAN_TOKENS, LR = 2, 2, 3, 4, 12, 16, 1e-3
DEFAULTS = dict(
    K=K,
    M=M,
    T=T,
    action_tokens=ACTION_TOKENS,
    plan_tokens=PLAN_TOKENS,
    micro_batch=3,
    passes=2,
    lr=LR,
)
REWARDS = [
    [[1, 0, 0], [1, 1, None]],
    [[0, 0, 0], [0, 1, 0]],
]  # None: an episode that its environment broke
FLAGS = {
    "paper": {},
    "clip-higher": dict(eps=0.05, eps_high=0.3),
    "kl": dict(beta=0.2),
    "tis": dict(tis=1.3),
    "std": dict(normalize_std=True),
    "length": dict(normalize_length=True),
    "milestone": dict(milestone=0.5),
    "all": dict(
        eps=0.05,
        eps_high=0.3,
        beta=0.2,
        tis=1.3,
        normalize_std=True,
        normalize_length=True,
        milestone=0.5,
    ),
}


@pytest.fixture(scope="module")
def lora(checkpoint):
    """A policy with a fresh adapter that is not zero."""
    policy = load_policy(checkpoint, "cpu", torch.float32, lora=(4, 8))
    move(policy, 0.05, seed=0)
    return policy


def move(policy, by: float, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in adapter(policy):
            p += torch.randn(p.shape, generator=noise) * by


def adapter(policy) -> list[torch.Tensor]:
    return [p for p in policy.parameters() if p.requires_grad]


@pytest.fixture(scope="module")
def groups(lora) -> list[Group]:
    """Two tasks' made-up episodes; replies of different lengths; every second episode got a new
    plan at its second step.
    """
    rng = random.Random(0)
    words = "click Zoo Bank open page list".split()

    def reply(prompt: str, image: bytes) -> tuple[str, list[int], list[int], list[float]]:
        text = " ".join(rng.choices(words, k=rng.randint(1, 3)))
        ids = lora.response_ids(text)
        return (
            text,
            lora.prompt_ids(Prompt("", prompt, image)),
            ids,
            [rng.uniform(-9, -6) for _ in ids],
        )

    def plan(image: bytes) -> Plan:
        text, *sampled = reply("Plan", image)
        return Plan(text, [text], *sampled)

    made = []
    for b in range(B):
        first = screenshot(b, 56, 56)
        rows = []
        for i, j in itertools.product(range(K), range(M)):
            steps = []
            for t in range(1 + (i + j) % 3):
                image = screenshot(b + t, 56, 56)
                text, *sampled = reply(f"Task {t}", image)
                again = plan(image) if t == 1 and j % 2 else None
                steps.append(
                    Step(
                        image,
                        56,
                        56,
                        "",
                        Turn((Action("click", 1, 1),), "", ""),
                        "",
                        text,
                        *sampled,
                        plan=again,
                    )
                )
            R = REWARDS[b][i][j]
            rows.append(
                Episode(
                    f"t{b}",
                    i,
                    j,
                    steps if R is not None else [],
                    R,
                    None if R is not None else {},
                    "",
                    "",
                    [],
                    1.0,
                    0,
                    milestones=[True, False, j == 1] if R is not None else None,
                )
            )
        made.append(
            Group(
                Task(f"t{b}", (), "", "", {}),
                first,
                [plan(first) for _ in range(K)],
                [rows[i * M : (i + 1) * M] for i in range(K)],
            )
        )
    return made


def advantages(values: list[float | None], std: bool) -> list[float]:
    known = [v for v in values if v is not None]
    mean = sum(known) / len(known) if known else 0.0
    scale = (
        math.sqrt(sum((v - mean) ** 2 for v in known) / len(known)) + 1e-4 if std and known else 1.0
    )
    return [0.0 if v is None else (v - mean) / scale for v in values]


def brute_force(
    policy, groups: list[Group], role: str, old: dict, args: train_rl.Args
) -> torch.Tensor:
    """Eqs. 5 to 10 with each option as its own paper states it. old: logp under the rollout's
    policy by sample.
    """
    loss = torch.zeros(())

    def token_sum(key, prompt_ids, image, ids, sampled, A):
        sample = Sample(prompt_ids, image, ids)
        logp = scaled(policy, sample, args.temperature)
        if key not in old:
            old[key] = logp.detach().tolist()
        with torch.no_grad(), policy.model.disable_adapter():
            reference = scaled(policy, sample, args.temperature).tolist()
        total = 0.0
        for lp, lo, ref, sam in zip(logp, old[key], reference, sampled):
            r = torch.exp(lp - lo)
            high = 1 + (args.eps if args.eps_high is None else args.eps_high)
            inside = (
                r.item()
                if 1 - args.eps <= r.item() <= high
                else min(max(r.item(), 1 - args.eps), high)
            )
            term = r * A if r.item() * A <= inside * A else inside * A
            if args.tis:
                term = term * min(math.exp(lo - sam), args.tis)
            total = total + term - args.beta * (torch.exp(ref - lp) - (ref - lp) - 1)
        return total

    for b, g in enumerate(groups):
        R = [[e.reward for e in row] for row in g.episodes]
        S = [sum(known) / len(known) for known in ([r for r in row if r is not None] for row in R)]
        for i, A_D in enumerate(advantages(S, args.normalize_std)):
            shaped = [
                None if e.reward is None else e.reward + args.milestone * sum(e.milestones) / 3
                for e in g.episodes[i]
            ]
            if role == "decomposer":
                p = g.plans[i]
                length = len(p.ids) if args.normalize_length else PLAN_TOKENS
                loss = loss - token_sum((b, i), p.prompt_ids, g.first, p.ids, p.logps, A_D) / (
                    B * K * length
                )
                shaped = R[i]  # milestones are no reason to plan easy subtasks
            for j, A in enumerate(advantages(shaped, args.normalize_std)):
                steps = g.episodes[i][j].steps
                for t, s in enumerate(steps):
                    if role == "actor":
                        length = (  # M-GRPO's 1/|tau| x 1/|a|
                            len(steps) * len(s.ids) if args.normalize_length else T * ACTION_TOKENS
                        )
                        loss = loss - token_sum(
                            (b, i, j, t), s.prompt_ids, s.screenshot, s.ids, s.logps, A
                        ) / (B * K * M * length)
                    elif s.plan:
                        length = len(s.plan.ids) if args.normalize_length else PLAN_TOKENS
                        loss = loss - token_sum(
                            (b, i, j, t),
                            s.plan.prompt_ids,
                            s.screenshot,
                            s.plan.ids,
                            s.plan.logps,
                            A,
                        ) / (B * K * M * length)
    return loss


def scaled(policy, sample: Sample, temperature: float) -> torch.Tensor:
    """stock_logp at a temperature: the head's logits are divided by it."""
    hook = policy.base.lm_head.register_forward_hook(
        lambda _module, _inputs, logits: logits / temperature
    )
    try:
        return stock_logp(policy, sample)
    finally:
        hook.remove()


@pytest.mark.parametrize("role", train_rl.ROLES)
@pytest.mark.parametrize("flags", FLAGS)
def test_gradients_equal_brute_force(lora, groups, flags, role):
    args = train_rl.Args(**DEFAULTS | FLAGS[flags])
    parameters = adapter(lora)
    start = [p.detach().clone() for p in parameters]
    samples = train_rl.useful(train_rl.SAMPLES[role](groups, args), args.beta)
    random.Random(1).shuffle(samples)
    parts = [samples[at : at + args.micro_batch] for at in range(0, len(samples), args.micro_batch)]
    Z, old, known = train_rl.loss_constants(args, B)[role], [], {}
    for number in range(2):  # on the second pass the ratios are no longer 1
        total = [torch.zeros_like(p) for p in parameters]
        for at, part in enumerate(parts):
            logp = lora(part, args.temperature)
            old += [logp.detach()] if number == 0 else []
            loss = train_rl.objective(lora, part, logp, old[at], Z, args)
            total = [g + d for g, d in zip(total, torch.autograd.grad(loss, parameters))]
        expected = torch.autograd.grad(brute_force(lora, groups, role, known, args), parameters)
        worst = max((ours - theirs).abs().max().item() for ours, theirs in zip(total, expected))
        assert worst < 1e-6 and max(g.abs().max().item() for g in expected) > 1e-4, worst
        if number == 0:
            move(lora, 0.02, seed=7)
    with torch.no_grad():
        for p, before in zip(parameters, start):
            p.copy_(before)


def test_each_flag_changes_the_gradient(lora, groups):
    """Else the comparison above could not tell a flag from its absence."""

    def gradient(flags: dict, old: dict) -> torch.Tensor:
        args = train_rl.Args(**DEFAULTS | flags)
        return torch.cat(
            [
                g.flatten()
                for g in torch.autograd.grad(
                    brute_force(lora, groups, "actor", old, args), adapter(lora)
                )
            ]
        )

    old: dict = {}
    gradient({}, old)
    move(lora, 0.02, seed=7)
    paper = gradient({}, old)
    for name, flags in FLAGS.items():
        assert name == "paper" or (gradient(flags, old) - paper).norm() > 1e-3 * paper.norm(), name
    move(lora, -0.02, seed=7)


def test_one_set_of_weights_adds_both_objectives(checkpoint, groups, monkeypatch):
    """--shared, through update() and DeepSpeed: AdamW's steps on the sum of the two brute-force
    losses (eq. 11).
    """
    from jhima.training.deepspeed_engine import init_distributed, make_engine

    args = train_rl.Args(**DEFAULTS)
    ours, theirs = (load_policy(checkpoint, "cpu", torch.float32, lora=(4, 8)) for _ in range(2))
    for policy in (ours, theirs):
        with torch.no_grad():
            for p, seed in zip(adapter(policy), itertools.count()):
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)) * 0.05)
    init_distributed()
    engine = make_engine(ours, ROOT / "ds_config.json", LR, stage=1, bf16=False, clip=1e9)
    samples = {
        role: train_rl.useful(make(groups, args), 0.0) for role, make in train_rl.SAMPLES.items()
    }
    rows = train_rl.update(
        Learner(ours, train_rl.ROLES, engine), samples, train_rl.loss_constants(args, B), args
    )
    optimizer, old = (
        torch.optim.AdamW(adapter(theirs), lr=LR, weight_decay=0.0),
        {role: {} for role in train_rl.ROLES},
    )
    for row in rows:
        optimizer.zero_grad()
        sum(
            brute_force(theirs, groups, role, old[role], args) for role in train_rl.ROLES
        ).backward()
        norm = torch.cat([p.grad.flatten() for p in adapter(theirs)]).norm().item()
        assert (
            row["actor/grad_norm"] == row["decomposer/grad_norm"] == pytest.approx(norm, rel=1e-4)
        )
        optimizer.step()
    assert all((a - b).abs().max() < 1e-5 for a, b in zip(adapter(ours), adapter(theirs)))


# ---- TRL ----


@pytest.mark.parametrize(
    "loss_type, beta, eps_high, tis",
    [
        ("dr_grpo", 0.0, 0.2, None),
        ("dr_grpo", 0.1, 0.28, 1.5),
        ("grpo", 0.0, 0.2, None),
        ("grpo", 0.1, 0.28, 1.5),
    ],
)
def test_loss_and_gradient_equal_trls(tmp_path, checkpoint, loss_type, beta, eps_high, tis):
    """On one token batch, where both describe one objective: group of equal rank, one turn, fixed
    completion budget.
    """
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    rows, budget, temperature = 6, 9, 0.8
    torch.manual_seed(0)
    Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    ).save_pretrained(tmp_path / "model")
    trainer = trl.GRPOTrainer(
        str(tmp_path / "model"),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list([{"prompt": "x"}]),
        processing_class=AutoTokenizer.from_pretrained(checkpoint),
        args=trl.GRPOConfig(
            str(tmp_path / "out"),
            loss_type=loss_type,
            beta=beta,
            epsilon=0.2,
            epsilon_high=eps_high,
            report_to=[],
            max_completion_length=budget,
            temperature=temperature,
            num_generations=rows,
            use_cpu=True,
            per_device_train_batch_size=rows,
            bf16=False,
            gradient_checkpointing=False,
            use_bias_correction_kl=False,
            model_init_kwargs={"dtype": "float32"},
        ),
    )  # the ratio times KL: not ours
    model = trainer.model.eval()
    lengths = [9, 4, 7, 1, 5, 9]
    prompts, completions = torch.randint(64, (rows, 5)), torch.randint(64, (rows, budget))
    mask = torch.arange(budget) < torch.tensor(lengths)[:, None]  # [rows, budget]
    R = torch.tensor([[1.0, 0, 0, 1, 0, 0]])
    advantage = grpo.actor_advantages(R)[0]  # [rows]

    logits = model(torch.cat([prompts, completions], 1)).logits[:, 4:-1] / temperature
    logp = logits.log_softmax(-1).gather(-1, completions[..., None])[..., 0]  # [rows, budget]
    old, sampled, reference = (logp.detach() + torch.randn(logp.shape) * s for s in (0.3, 0.5, 0.3))
    correction = grpo.sampler_correction(old, sampled, tis) if tis else torch.ones_like(old)
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
        "completion_mask": mask.long(),
        "advantages": advantage,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "importance_sampling_ratio": correction,
    }
    trainer.use_vllm, trainer.vllm_importance_sampling_correction = bool(tis), bool(tis)
    theirs = trainer._compute_loss(model, inputs)

    standard = loss_type == "grpo"
    _, Z = grpo.loss_constants(1, rows, 1, 1, 1, budget, normalize_length=standard)
    weight = (
        (1 / torch.tensor(lengths)[:, None]).expand_as(mask) if standard else torch.ones(mask.shape)
    )
    flat = [
        x[mask]
        for x in (logp, old, advantage[:, None].expand_as(mask), reference, correction, weight)
    ]
    ours = grpo.policy_loss(*flat[:3], Z, 0.2, beta, flat[3], eps_high, flat[4], flat[5])
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    ours_grad, theirs_grad = (
        torch.autograd.grad(loss, list(model.parameters())) for loss in (ours, theirs)
    )
    assert max((a - b).abs().max().item() for a, b in zip(ours_grad, theirs_grad)) < 1e-6
    assert max(g.abs().max().item() for g in theirs_grad) > 1e-3
