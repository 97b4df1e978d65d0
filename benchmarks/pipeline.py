"""Does the whole way work? The real scripts, one after another, as a user types them.

    python benchmarks/pipeline.py pocket                   # one GPU: 5 minutes
    python benchmarks/pipeline.py 7b                       # one H200: random weights, 7B's shape
    python benchmarks/pipeline.py 7b --gpu-gib 80          # ... with 80 GB, from its checkpoints
    python benchmarks/pipeline.py quick                    # few tasks, vLLM in RL alone, no kill
    python benchmarks/pipeline.py quick --sampler local    # no GPU, no vLLM

Demonstrations, annotation, fine-tuning of both roles, evaluation, joint RL that is killed (SIGKILL)
in the middle of its second batch and resumed, evaluation by both samplers, report. After each stage
it is checked that the exit status is the expected one, that every file is there and can be read,
and that no process is left; after RL, that it ended within ten seconds of writing its adapters;
at the end, that both samplers' success agrees within its 95 % interval. 7b plays one task of K=3
and M=7 from random weights, which solve nothing: a KL term makes every sample count.

One line per stage: seconds, and the GPU's peak memory. Stages that are finished are not run again
by the same command. 80 GiB are too few to fine-tune a 7B on one GPU: --gpu-gib takes the rest of
the memory and repeats what follows fine-tuning.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import tyro

from benchmarks import shape
from jhima import cli
from jhima.pocket.teacher import MODEL, serve_teacher

MARK = "JHIMA_PIPELINE"  # in the environment of every process that a stage starts
DEEPSPEED = ("-m", "deepspeed.launcher.runner")  # what the command `deepspeed` runs
# From the adapters' last file to the end of the process; without a GPU, engines share few cores.
END_SECONDS = 10 if torch.cuda.is_available() else 60


@dataclass
class Args:
    part: tyro.conf.Positional[Literal["pocket", "quick", "7b"]]
    """pocket: the demo's settings, two batches of RL; quick: as few tasks as can be; 7b: 7B's shape
    with random weights"""
    sampler: Literal["vllm", "local"] = "vllm"
    """sampler of RL and of the first evaluations"""
    gpu_gib: float | None = None
    """leave the scripts this much of the GPU's memory (None: all of it)"""
    kv_gib: float = 4.0
    """keys and values of each engine"""
    out: Path | None = None
    """where everything goes, by default runs/pipeline-PART"""


@dataclass(frozen=True)
class Part:
    """What differs between the parts: options of the scripts."""

    model: str
    demos: str
    decomposer: str
    actor: str
    rl: str
    evaluation: str
    vllm_evaluates: bool = True  # with vLLM; a CPU needs minutes to start its engines
    killed: bool = True  # RL, in its second batch


TOKENS = "--plan-tokens 64 --action-tokens 48"
PARTS = {
    "pocket": Part(
        model="jhima/pocket/base",
        demos="--limit 175",
        decomposer="--micro-batch 4 --accumulate 1 --epochs 4 --lr 1e-3",
        actor="--micro-batch 8 --accumulate 1 --epochs 2 --lr 5e-4",
        rl=f"--K 3 --M 4 --T 10 --temperature 1.2 --lr 5e-4 --micro-batch 16 {TOKENS}",
        evaluation=f"--limit 100 --runs 1 --T 10 {TOKENS}",
    ),
    "quick": Part(
        model="jhima/pocket/base",
        demos="--limit 4",
        decomposer="--micro-batch 4 --accumulate 1 --lr 1e-3",
        actor="--micro-batch 8 --accumulate 1 --lr 5e-4",
        rl=f"--K 2 --M 2 --T 3 --beta 0.01 --tasks-per-batch 1 --micro-batch 16 {TOKENS}",
        evaluation=f"--limit 2 --runs 1 --T 3 {TOKENS}",
        vllm_evaluates=False,
        killed=False,
    ),
    "7b": Part(
        model="7b",
        demos="--limit 4 --full",
        decomposer="--micro-batch 2 --accumulate 1 --eval-share 0",
        actor="--micro-batch 2 --accumulate 4 --eval-share 0",
        rl="--K 3 --M 7 --T 5 --beta 0.01 --tasks-per-batch 1",
        evaluation="--limit 1 --runs 1 --T 5",
    ),
}


class Wrong(Exception):
    """A check failed. Its text is the line to print."""


class Pipeline:
    """The stages of one run, and what they have in common."""

    def __init__(self, args: Args) -> None:
        self.part = PARTS[args.part]
        self.out = args.out or Path(f"runs/pipeline-{args.part}")
        self.out.mkdir(parents=True, exist_ok=True)
        self.models = f"--decomposer {self.out / 'decomposer'} --actor {self.out / 'actor'}"
        self.engine = f"--sampler {args.sampler}"
        if args.sampler == "vllm":
            self.engine += f" --kv-gib {args.kv_gib:g}"
        self.watch = shape.Watch()
        self.held = 0.0  # GiB that `leave_gib` took

    def stage(self, name: str, done: Path, work: Callable[[], str | None]) -> None:
        """Does `work` unless `done` exists; then checks that it does and that nothing is left.

        What `work` returns is the stage's note.
        """
        if done.exists():
            print(f"{name:24} finished before", flush=True)
            return
        with self.watch.phase() as phase:
            note = work() or ""
        if not done.exists():
            raise Wrong(f"{name}: {done} was not written")
        left = wait_for_end()
        if left:
            raise Wrong(f"{name}: still running: {'; '.join(left)}")
        memory = f"{phase.peak - self.held:6.1f} GiB" if phase.peak else ""
        print(f"{name:24}{phase.seconds:7.1f} s {memory}  {note}".rstrip(), flush=True)

    def start(self, name: str, *command: object) -> subprocess.Popen:
        log = (self.out / f"{name}.log").open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {MARK: str(os.getpid())},
            )

    def run(self, name: str, *command: object) -> None:
        """Raises Wrong, with the end of its log, unless the command ends with exit status 0."""
        status = self.start(name, *command).wait()
        if status:
            raise Wrong(f"{name}: exit status {status}\n{self.log_end(name)}")

    def log_end(self, name: str) -> str:
        lines = (self.out / f"{name}.log").read_text("utf-8", "replace").splitlines()
        return "\n".join(lines[-30:])


def processes() -> dict[int, str]:
    """Every running process that a stage of this pipeline started, with its command line."""
    found = {}
    mark = f"{MARK}={os.getpid()}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = command.decode("utf-8", "replace").strip()
    return found


def wait_for_end(seconds: float = 5) -> list[str]:
    """The command lines of what still runs after so long."""
    deadline = time.monotonic() + seconds
    while processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    return [command[:100] for command in processes().values()]


def leave_gib(gib: float) -> torch.Tensor:
    """Takes the GPU's memory but for so much, as a tensor to hold. Raises Wrong if it has less."""
    free, _ = torch.cuda.mem_get_info()
    taken = free - int(gib * 2**30)
    if taken < 0:
        raise Wrong(f"--gpu-gib {gib:g}: only {free / 2**30:.0f} GiB are free")
    return torch.empty(taken, dtype=torch.uint8, device="cuda")


# ---- stages ----


def fine_tune(pipe: Pipeline) -> None:
    """Demonstrations, their annotation, both roles' fine-tuning."""
    out, part = pipe.out, pipe.part
    data, annotations = out / "demos" / "meta.json", out / "annotations.jsonl"
    model = Path(part.model) if part.model != "7b" else out / "base"

    def demonstrate() -> None:
        command = f"demos --tasks pocket-demos {part.demos} --out {out / 'demos'}"
        pipe.run("demos", "-m", "jhima.pocket", *command.split())

    def annotate() -> None:
        with serve_teacher() as url:
            command = f"--data {data} --out {annotations} --base-url {url} --model {MODEL}"
            pipe.run("annotate", "annotate.py", *command.split())

    def tune(role: str, options: str) -> str:
        command = f"--role {role} --model {model} --data {data} --out {out / role}"
        command += f" --annotations {annotations} {options}"
        pipe.run(f"sft-{role}", *DEEPSPEED, "train_sft.py", *command.split())
        rows = read_metrics(out / role / "metrics.jsonl")
        return f"{len(rows)} steps, loss {rows[0]['loss']:.2f} to {rows[-1]['loss']:.2f}"

    pipe.stage("demonstrations", data, demonstrate)
    pipe.stage("annotation", annotations, annotate)
    if part.model == "7b":
        pipe.stage("random weights", model / "config.json", partial(write_random_7b, model))
    for role, options in (("decomposer", part.decomposer), ("actor", part.actor)):
        pipe.stage(f"fine-tuning, {role}", out / role / "sft.json", partial(tune, role, options))


def write_random_7b(folder: Path) -> None:
    shape.write_shape(folder)
    model = shape.random_model(folder)
    model.save_pretrained(folder)
    del model
    shape.reset_peak()


def reinforce(pipe: Pipeline, name: str) -> Path:
    """Two batches of RL, which the same command resumes where it was killed. Returns the run."""
    out = pipe.out / name
    command = f"train_rl.py {pipe.engine} {pipe.models} --out {out} --tasks pocket-rl"
    command = [*DEEPSPEED, *f"{command} --limit-batches 2 {pipe.part.rl}".split()]
    adapters = [out / role / "adapter_config.json" for role in ("decomposer", "actor")]

    def kill() -> str:
        process = pipe.start(name, *command)
        wait_for_episode(process, out / "rollouts" / "000001", pipe, name)
        for pid, line in processes().items():
            if "train_rl.py" in line and "deepspeed" not in line:
                os.kill(pid, signal.SIGKILL)
        if process.wait() == 0:
            raise Wrong(f"{name}: exit status 0 after it was killed")
        return "in its second batch"

    def finish() -> str:
        pipe.run(name, *command)
        seconds = time.time() - max(path.stat().st_mtime for path in adapters)
        if seconds > END_SECONDS:
            raise Wrong(f"{name}: ended {seconds:.0f} s after its adapters")
        rows = read_metrics(out / "metrics.jsonl")
        steps = [row["step"] for row in rows]
        if steps != list(range(4)):  # two batches, two passes
            raise Wrong(f"{name}: steps {steps} in metrics.jsonl, not 0 to 3")
        return (
            f"ended {seconds:.0f} s after its adapters; "
            f"rollouts {rows[0]['seconds/rollout']:.0f} s, "
            f"log-prob gap {rows[0]['actor/sampler_gap']:.4f}"
        )

    if pipe.part.killed:
        pipe.stage(f"{name}, killed", out / "metrics.jsonl", kill)
    pipe.stage(name, adapters[-1], finish)
    return out


def wait_for_episode(process: subprocess.Popen, folder: Path, pipe: Pipeline, name: str) -> None:
    """Until an episode is finished in `folder`. Raises Wrong if the process ends before."""
    while not list(folder.glob("*/p*_e*")):
        if process.poll() is not None:
            raise Wrong(f"{name}: ended before its second batch\n{pipe.log_end(name)}")
        time.sleep(0.2)


def read_metrics(path: Path) -> list[dict]:
    """Rows of strict JSON. Raises Wrong at the first line that is none."""

    def refuse(word: str) -> None:
        raise Wrong(f"{path}: {word} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.open()]


def evaluate(pipe: Pipeline, name: str, engine: str, rl: Path | None = None) -> dict:
    """Plays pocket-eval, with the adapters of `rl`; returns the success over all its tasks."""
    out = pipe.out / name
    command = f"evaluate.py {engine} {pipe.models} --out {out} --tasks pocket-eval"
    if rl:
        command += f" --adapters {rl}"

    def play() -> str:
        pipe.run(name, *f"{command} {pipe.part.evaluation}".split())
        return f"{100 * overall(out)['mean']:.1f} % success"

    pipe.stage(f"evaluation, {name}", out / "results.json", play)
    return overall(out)


def overall(run: Path) -> dict:
    return json.loads((run / "results.json").read_text())["overall"]


def compare(one: dict, other: dict) -> None:
    """Raises Wrong where two success rates differ by more than their 95 % interval."""
    a, b = one["mean"], other["mean"]
    mean = (a + b) / 2
    noise = 1.96 * math.sqrt(2 * mean * (1 - mean) / one["tasks"])
    if abs(a - b) > noise:
        raise Wrong(f"success differs by sampler: {a:.3f} and {b:.3f}, noise {noise:.3f}")


def report(pipe: Pipeline, rl: Path) -> None:
    page = rl / "report.html"

    def write() -> str:
        pipe.run("report", "-m", "jhima.results.report", rl, "--out", page)
        return f"{page.stat().st_size >> 10} KiB"

    pipe.stage(f"report of {rl.name}", page, write)


def main() -> None:
    args = cli.parse(Args, __doc__)
    pipe = Pipeline(args)
    print(f"{args.part} on {shape.DEVICE_NAME}; everything goes to {pipe.out}", flush=True)
    try:
        fine_tune(pipe)
        suffix = ""
        if args.gpu_gib:
            suffix, held = f"-{args.gpu_gib:g}", leave_gib(args.gpu_gib)
            pipe.held = held.numel() / 2**30
        local = "--sampler local"
        engine = pipe.engine if pipe.part.vllm_evaluates else local
        evaluate(pipe, f"before{suffix}", engine)
        rl = reinforce(pipe, f"rl{suffix}")
        after = evaluate(pipe, f"after{suffix}", engine, rl)
        if engine != local:
            compare(after, evaluate(pipe, f"after-local{suffix}", local, rl))
        report(pipe, rl)
    except Wrong as wrong:
        sys.exit(f"pipeline: {wrong}")
    finally:
        pipe.watch.close()
    print("everything as it should be")


if __name__ == "__main__":
    main()
