"""train_sft.py itself, in processes of its own: killed and resumed, on one process and on two.

Some samples of its data are broken.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from samples import ROOT, free_port, start_process
from scalecua import demonstrations, sample, write_data, write_image
from transformers import AutoImageProcessor, AutoTokenizer

import train_sft
from jhima.models.checkpoint_files import check_checkpoint

PLAN = [{"title": "Open it", "goal": "it is open"}, {"title": "Read it", "goal": "it is read"}]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """(meta file, annotations): 8 trajectories of 3 steps, 8 chats, and 4 groundings, 3 broken."""
    folder = tmp_path_factory.mktemp("sft")
    metas = [demonstrations(folder / "steps", 8)]
    chats = [sample([], f"Open page {i}", "Click Zoo " * (1 + i % 3)) for i in range(8)]
    metas.append(write_data(folder / "chat", {"chat": chats}, {"chat": "internvl2_5"}))
    rows = [
        sample(image, "<image>\nthe Zoo", "<action>\nclick(x=0.5, y=0.5)\n</action>")
        for image in ("a.png", "gone.png", "gone.png", "../x")
    ]
    metas.append(
        write_data(folder / "ground", {"ground": rows}, {"ground": "internvl2_5_web_grounding_v1"})
    )
    write_image(folder / "ground/images/a.png")
    (folder / "meta.json").write_text(json.dumps([str(m.relative_to(folder)) for m in metas]))
    lines = [{"trajectory": f"demos/t{t}", "subtasks": PLAN, "unnecessary": None} for t in range(7)]
    (folder / "annotations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "meta.json", folder / "annotations.jsonl"


def run(argv: list[str], rank: int, world: int, port: int, log: str) -> None:
    """train_sft.py's main as one of `world` ranks; what it prints goes to `log`."""
    sys.argv = argv
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    os.chdir(ROOT)
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    train_sft.main()


def start(
    data, checkpoint, out, *more: object, rank: int = 0, world: int = 1, port: int = 0
) -> multiprocessing.Process:
    argv = ["train_sft.py", "--data", data[0], "--annotations", data[1], "--model", checkpoint]
    argv += ["--out", out, "--lr", 1e-2, "--eval-share", 0.25, "--epochs", 2, *more]
    return start_process(
        run,
        list(map(str, argv)),
        rank,
        world,
        port or free_port(),
        str(out.with_suffix(f".{rank}.log")),
    )


def finish(*processes: multiprocessing.Process) -> None:
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
    assert [p.exitcode for p in processes] == [0] * len(processes)


def metrics(out) -> list[dict]:
    """What a run says of its steps, without the time they took."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.endswith("/s")} for row in rows]


ACTOR = "--role", "actor", "--micro-batch", 3, "--accumulate", 1, "--save-every", 2


def test_killed_and_resumed_bit_for_bit(data, checkpoint, tmp_path):
    """SIGTERM, then SIGKILL, at any point after a checkpoint: curve and model are a quiet run's."""
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    finish(start(data, checkpoint, quiet, *ACTOR, "--workers", 2))
    latest = killed / "resume/latest"
    # After so many steps; the number of workers need not be the same.
    for after, name in ((2, signal.SIGTERM), (6, signal.SIGKILL)):
        process, deadline = start(data, checkpoint, killed, *ACTOR), time.monotonic() + 60
        while time.monotonic() < deadline and not (
            latest.exists() and int(latest.read_text().removeprefix("step")) >= after
        ):
            time.sleep(0.01)
        os.kill(process.pid, name)
        process.join()
        if name == signal.SIGTERM:  # it ends by itself, and loses nothing
            assert process.exitcode == 1 and latest.read_text() == f"step{len(metrics(killed))}"
        else:
            assert process.exitcode == -signal.SIGKILL and latest.exists()
        with open(killed / "metrics.jsonl", "a") as file:
            file.write('{"step": 99, "loss"')  # a line that the kill cut short
    finish(start(data, checkpoint, killed, *ACTOR))
    assert (
        metrics(killed) == metrics(quiet)
        and metrics(quiet)[-1]["eval_loss"] < metrics(quiet)[1]["eval_loss"]
    )
    a, b = (load_file(folder / "model.safetensors") for folder in (quiet, killed))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    before = load_file(checkpoint / "model.safetensors")
    changed = {name for name in a if not torch.equal(a[name], before[name])}
    assert not any("visual.blocks" in n or "patch_embed" in n for n in changed) and any(
        "visual.merger" in n for n in changed
    )
    assert any("embed_tokens" in n for n in changed)
    assert (
        not (killed / "resume").exists()
        and json.loads((killed / "sft.json").read_text())["left_out_when_read"]
        == json.loads((quiet / "sft.json").read_text())["left_out_when_read"]
    )
    finish(start(data, checkpoint, killed, *ACTOR))  # finished: nothing is done again
    assert metrics(killed) == metrics(quiet)


@pytest.mark.parametrize("more", [[], ["--tune-vision"]])
def test_two_processes_under_zero_3_equal_one(data, checkpoint, tmp_path, more):
    """Every parameter partitioned, ranks with different images and numbers of packs.

    The losses and gradients are the same.
    """
    config = json.loads((ROOT / "ds_config.json").read_text())
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    (tmp_path / "ds.json").write_text(json.dumps(config))
    one, two, port = tmp_path / "one", tmp_path / "two", free_port()
    same = ["--role", "actor", *more, "--accumulate", 1, "--lr", 1e-3]
    zero_3 = [*same, "--zero", 3, "--micro-batch", 4, "--deepspeed-config", tmp_path / "ds.json"]
    ranks = [
        start(data, checkpoint, two, *zero_3, rank=rank, world=2, port=port) for rank in range(2)
    ]
    finish(*ranks)
    finish(start(data, checkpoint, one, *same, "--zero", 1, "--micro-batch", 8))
    rows = list(zip(metrics(one), metrics(two), strict=True))
    assert len(rows) >= 2
    for a, b in rows:
        assert {k: v for k, v in a.items() if isinstance(v, int)} == {
            k: v for k, v in b.items() if isinstance(v, int)
        }
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5) and a["grad_norm"] == pytest.approx(
            b["grad_norm"], rel=1e-4
        )
    assert rows[-1][0]["eval_loss"] == pytest.approx(rows[-1][1]["eval_loss"], abs=1e-5)
    told = [
        re.search(r"([1-9][\d,]+) parameters", folder.with_suffix(".0.log").read_text())[1]
        for folder in (one, two)
    ]
    assert told[0] == told[1]  # not the partitions' own sizes
    states = [load_file(folder / "model.safetensors") for folder in (one, two)]
    assert states[0].keys() == states[1].keys()
    assert max((states[0][n].float() - states[1][n].float()).abs().max() for n in states[0]) < 1e-4
    for folder in (one, two):
        assert_loads_as_it_is(folder, checkpoint)


def assert_loads_as_it_is(folder, checkpoint) -> None:
    """transformers and vLLM find in what was written all that they found in the base."""
    written, base = (AutoImageProcessor.from_pretrained(path) for path in (folder, checkpoint))
    assert written.to_dict() == base.to_dict()
    assert len(AutoTokenizer.from_pretrained(folder)) == len(
        AutoTokenizer.from_pretrained(checkpoint)
    )
    missing = {path.name for path in checkpoint.iterdir()} - {p.name for p in folder.iterdir()}
    assert not missing
    check_checkpoint(folder)


def test_a_checkpoint_without_its_image_processor_is_told(data, checkpoint, tmp_path, monkeypatch):
    """What vLLM would say minutes later, in a traceback, is one line before any model loads."""
    model = shutil.copytree(checkpoint, tmp_path / "model")
    (model / "preprocessor_config.json").unlink()
    argv = ["train_sft.py", *ACTOR, "--data", data[0], "--annotations", data[1], "--model", model]
    monkeypatch.setattr(sys, "argv", [*map(str, argv), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="^train_sft.py: .*model: no preprocessor_config.json"):
        train_sft.main()


def test_what_was_left_out_is_counted(data, checkpoint, tmp_path):
    out = tmp_path / "out"
    flags = "--role actor --micro-batch 9 --accumulate 1 --eval-share 0 --epochs 1".split()
    finish(start(data, checkpoint, out, *flags))
    found = json.loads((out / "sft.json").read_text())
    assert (
        found["left_out_before"]["trajectory without annotation"] == 1
        and found["samples"] == 21 + 8 + 4
    )
    assert found["left_out_when_read"] == {"image missing": 2, "image outside its root": 1}
    assert (
        sum(row["samples"] for row in metrics(out)) == 21 + 8 + 1
        and sum(row["left_out"] for row in metrics(out)) == 3
    )


def test_evaluation_draws_from_all_that_is_held_back(monkeypatch):
    """Samples lie data set by data set; every run of a seed evaluates on the same ones."""
    monkeypatch.setattr(train_sft, "MAX_EVALUATED", 30)
    held_back = ["first"] * 700 + ["second"] * 200 + ["third"] * 100
    drawn = train_sft.evaluated(held_back, seed=0)
    assert len(drawn) == len(set(drawn.indices)) == 30
    assert {drawn[i] for i in range(30)} == {"first", "second", "third"}
    assert drawn.indices == train_sft.evaluated(held_back, seed=0).indices
    assert drawn.indices != train_sft.evaluated(held_back, seed=1).indices
    assert sorted(train_sft.evaluated(held_back[:20], seed=0).indices) == list(range(20))


def test_another_run_of_the_same_name_is_refused(data, checkpoint, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "args.json").write_text(json.dumps({"script": "train_sft.py", "role": "decomposer"}))
    argv = ["train_sft.py", *ACTOR, "--data", data[0], "--annotations", data[1], "--out", out]
    monkeypatch.setattr(sys, "argv", [*map(str, argv), "--model", str(checkpoint)])
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit, match="train_sft.py: .*holds a run with --"):
        train_sft.main()


def test_gradients_that_are_never_finite_end_the_run_in_one_line(data, checkpoint, tmp_path):
    """Its metrics, up to then, are strict JSON, and there is no checkpoint of such a model."""
    broken, out = tmp_path / "broken", tmp_path / "out"
    shutil.copytree(checkpoint, broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    process = start(data, broken, out, *ACTOR)
    process.join(120)
    log = (tmp_path / "out.0.log").read_text()
    assert process.exitcode == 1 and not (out / "sft.json").exists()
    line = "train_sft.py: step 2: gradients of the actor not finite, 3 steps in a row"
    assert log.splitlines()[-1] == line and "Traceback" not in log

    def refused(constant: str):
        raise AssertionError(constant)

    lines = (out / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refused) for line in lines]
    assert [(row["skipped"], row["grad_norm"], row["loss"]) for row in rows] == [
        (1, None, None)
    ] * 3
