"""annotate.py against a teacher that misbehaves in every way, and a SIGKILL at any moment."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from samples import start_process
from scalecua import demonstrations

import annotate
import jhima.data.teacher
from jhima.data import openai_batch
from jhima.data.scalecua import read_annotations, read_meta, read_trajectory
from jhima.data.teacher import Output

GOOD = (
    "[SUBGOAL ANALYSIS]\nA page is opened.\n\n[SUBTASKS]\nSUBTASK 1:\nOpen it\n- Goal:\n{task}\n\n"
    "[UNNECESSARY ACTIONS]\n{verdict}"
)
FAULTS = ["429", "500", "503", "cut", "hang", "no json", "no reply", "reset", "empty"]


class Teacher(ThreadingHTTPServer):
    """An OpenAI-like server.

    faults: what goes wrong with the next requests; `chance`: how often one of FAULTS goes wrong
    with another request. bad: tasks whose replies do not parse; refused: tasks answered with HTTP
    400.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: list[str] = []
        self.chance, self.random, self.lock = 0.0, random.Random(5), threading.Lock()
        self.bad: dict[str, int] = {}  # task -> how many more of its replies do not parse
        self.refused: set[str] = set()
        self.asked: Counter[str] = Counter()  # good or bad replies given, by task
        self.flying = self.most = 0
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict] = {}
        self.looks = 0
        self.fails: dict = {}  # what becomes of a batch instead of its results
        self.raw = ""  # put into every reply, and into the results as it is
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, address) -> None:
        pass  # clients that were killed

    def reply(self, body: dict) -> tuple[int, dict]:
        message = (body.get("messages") or body["input"])[0]["content"]
        text = "\n".join(part["text"] for part in message if part["type"] in ("text", "input_text"))
        task = text.split("Task: ")[1].split("\n")[0]
        with self.lock:
            if task in self.refused:
                return 400, {"error": {"message": "too long", "code": "context_length_exceeded"}}
            self.asked[task] += 1
            parses = self.bad.get(task, 0) == 0
            self.bad[task] = max(0, self.bad.get(task, 0) - 1)
        verdict = "YES: waiting" if task.endswith("0") else "NONE"
        said = GOOD.format(task=task, verdict=verdict) if parses else "I am not sure."
        said += self.raw
        if "input" in body:
            message = {"type": "message", "content": [{"type": "output_text", "text": said}]}
            return 200, {
                "id": "r",
                "object": "response",
                "output": [{"type": "reasoning", "summary": []}, message],
                "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
            }
        return 200, {
            "id": "c",
            "object": "chat.completion",
            "choices": [{"message": {"role": "assistant", "content": said}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }


class Handler(BaseHTTPRequestHandler):
    server: Teacher
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def send(self, status: int, body: object, cut: bool = False, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        self.close_connection = cut

    def do_GET(self) -> None:
        path = self.path.split("?")[0].removeprefix("/v1/")
        if path == "batches":
            found = list(self.server.batches.values())
            return self.send(200, {"object": "list", "data": found, "has_more": False})
        kind, name, *rest = path.split("/")
        if kind == "files":
            return self.send(200, self.server.files[name])
        self.server.looks += 1
        batch = self.server.batches[name]
        if batch["status"] == "in_progress" and self.server.looks % 3 == 0:
            lines = []
            for line in self.server.files[batch["input_file_id"]].splitlines():
                request = json.loads(line)
                status, body = self.server.reply(request["body"])
                lines.append(
                    json.dumps(
                        {
                            "custom_id": request["custom_id"],
                            "response": {"status_code": status, "body": body},
                        },
                        ensure_ascii=False,
                    )
                )
            self.server.files[f"out-{name}"] = "\n".join(
                self.server.random.sample(lines, len(lines))
            ).encode()
            batch |= self.server.fails or {
                "status": "completed",
                "output_file_id": f"out-{name}",
            }
        self.send(200, batch)

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        server, path = self.server, self.path.removeprefix("/v1/")
        if path == "files":
            name = f"file-{len(server.files)}"
            lines = [line.rstrip(b"\r") for line in data.split(b"\n")]  # of the multipart form
            server.files[name] = b"\n".join(
                line for line in lines if line.startswith(b'{"custom_id"')
            )
            return self.send(200, {"id": name, "object": "file", "purpose": "batch"})
        body = json.loads(data)
        if path == "batches":
            name = f"batch-{len(server.batches)}"
            server.batches[name] = {
                "id": name,
                "object": "batch",
                "status": "in_progress",
                "created_at": 1,
                **body,
            }
            return self.send(200, server.batches[name])
        with server.lock:
            server.flying += 1
            server.most = max(server.most, server.flying)
            fault = server.faults.pop(0) if server.faults else ""
            fault = (
                server.random.choice(FAULTS)
                if not fault and server.random.random() < server.chance
                else fault
            )
        time.sleep(0.01)
        with server.lock:
            # Before a byte is sent: whoever has read a reply, or given up, may ask again at once.
            server.flying -= 1
        self.answer(body, fault)

    def answer(self, body: dict, fault: str) -> None:
        if fault.isdigit():
            return self.send(
                int(fault),
                {"error": {"message": fault}},
                **({"Retry_After": "0"} if fault == "429" else {}),
            )
        if fault == "quota":
            return self.send(429, {"error": {"message": "no money", "code": "insufficient_quota"}})
        if fault == "hang":
            self.send_response(200)
            self.end_headers()
            for _ in range(8):  # drips: no read of its own ever times out
                time.sleep(0.1)
                self.wfile.write(b" ")
                self.wfile.flush()
            self.close_connection = True
            return None
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return None
        if fault in ("no json", "no reply", "empty"):
            return self.send(
                200,
                {"no json": b"<html>a proxy's page", "no reply": {"choices": []}, "empty": b""}[
                    fault
                ],
            )
        return self.send(*self.server.reply(body), cut=fault == "cut")


@contextmanager
def teacher():
    server = Teacher()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("jhima.models.openai_client.LONGEST_PAUSE", 0.02)


@pytest.fixture(scope="module")
def meta(tmp_path_factory):
    return demonstrations(tmp_path_factory.mktemp("annotate"), 12, steps=2)


def run(meta, out, url: str, *more: object) -> None:
    sys.argv = list(
        map(
            str,
            [
                "annotate.py",
                "--data",
                meta,
                "--out",
                out,
                "--base-url",
                url,
                "--model",
                "m",
                "--timeout",
                0.4,
                "--retries",
                30,
                "--concurrency",
                4,
                *more,
            ],
        )
    )
    annotate.main()


def rows(out) -> dict[str, dict]:
    """The lines of an output by trajectory, each of which must stand there once."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == len({line["trajectory"] for line in lines})
    return {line["trajectory"]: {k: v for k, v in line.items() if k != "tokens"} for line in lines}


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_every_fault_is_outlived(meta, tmp_path, api):
    out = tmp_path / "a.jsonl"
    with teacher() as server:
        server.faults = FAULTS + ["429"] * 5
        server.bad = {"Open page 3": 1, "Open page 4": 2}
        server.refused = {"Open page 5"}
        run(meta, out, server.url, "--api", api)
        found = rows(out)
        assert set(found) == {f"demos/t{t}" for t in range(12)} and server.most <= 4
        failed = {key: row for key, row in found.items() if row["failed"]}
        assert (
            set(failed) == {"demos/t4", "demos/t5"}
            and failed["demos/t4"]["reply"] == "I am not sure."
        )
        assert "sections" in failed["demos/t4"]["error"] and "400" in failed["demos/t5"]["error"]
        assert found["demos/t3"]["subtasks"] == [{"title": "Open it", "goal": "Open page 3"}]
        assert (
            found["demos/t10"]["unnecessary"] == "waiting"
            and found["demos/t1"]["unnecessary"] is None
        )
        asked = server.asked.total()
        run(meta, out, server.url, "--api", api)  # nothing is left to do
        assert server.asked.total() == asked and len(read_annotations(out)) == 10


def test_killed_at_random_moments_it_ends_with_the_same_file(meta, tmp_path):
    """SIGKILL again and again, while a third of all requests fail.

    The file is cut by hand too, as a kill may cut it.
    """
    quiet, killed = tmp_path / "quiet.jsonl", tmp_path / "killed.jsonl"
    kills = int(os.environ.get("KILLS", "5"))
    with teacher() as server:
        server.bad = {"Open page 4": 10**6}
        run(meta, quiet, server.url)
        server.chance, rng = 0.3, random.Random(1)
        for number in range(kills):
            process = start_process(run, meta, killed, server.url, "--concurrency", 2)
            time.sleep(rng.uniform(0.05, 0.35))
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            if killed.exists() and number % 2:
                with killed.open("ab") as file:
                    file.write(b'{"trajectory": "demos/t1", "task": "Op')
        server.chance = 0.0
        run(meta, killed, server.url)
    assert rows(killed) == rows(quiet) and len(rows(quiet)) == 12


def in_small_parts(*words: object) -> None:
    """A run in a process of its own, which has none of a test's patches."""
    openai_batch.PART_REQUESTS = 2
    run(*words)


def test_batches(meta, tmp_path, monkeypatch):
    """Parts of two requests, killed while they are under way.

    Each trajectory goes up once, an unreadable one twice.
    """
    monkeypatch.setattr("jhima.data.openai_batch.PART_REQUESTS", 2)
    out = tmp_path / "a.jsonl"
    with teacher() as server:
        server.bad, server.refused = {"Open page 3": 1, "Open page 4": 2}, {"Open page 5"}
        for pause in (0.15, 0.3):
            process = start_process(
                in_small_parts, meta, out, server.url, "--batch", "--poll", 0.05
            )
            time.sleep(pause)
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        run(meta, out, server.url, "--batch", "--poll", 0.02, "--timeout", 20)
        found = rows(out)
        assert set(found) == {f"demos/t{t}" for t in range(12)}
        assert {key for key, row in found.items() if row["failed"]} == {"demos/t4", "demos/t5"}
        assert server.asked == Counter(
            {f"Open page {t}": 1 + (t in (3, 4)) for t in range(12) if t != 5}
        )
        assert all(set(batch["metadata"]) == {"part"} for batch in server.batches.values()) and len(
            server.batches
        ) in (7, 8)
        assert not list((tmp_path / "a.jsonl.batches").iterdir())


@pytest.mark.parametrize("fault", ["401", "404", "quota"])
def test_what_no_request_survives_ends_the_run(meta, tmp_path, fault):
    with teacher() as server, pytest.raises(SystemExit, match="cannot be asked"):
        server.faults = [fault] * 100
        run(meta, tmp_path / "a.jsonl", server.url)


def test_an_outage_leaves_trajectories_for_another_run(meta, tmp_path, capsys):
    with teacher() as server:
        server.faults = ["500"] * 24
        run(meta, tmp_path / "a.jsonl", server.url, "--retries", 2)
        assert "left for another run: 12 HTTP 500" in capsys.readouterr().out and not rows(
            tmp_path / "a.jsonl"
        )
        run(meta, tmp_path / "a.jsonl", server.url, "--limit", 5)
        assert len(rows(tmp_path / "a.jsonl")) == 5


def test_estimate_sends_nothing(meta, tmp_path, capsys):
    with teacher() as server:
        run(meta, tmp_path / "a.jsonl", server.url, "--estimate", "--prices", 2, 10)
        said = capsys.readouterr().out
        assert not server.asked and "for 12 trajectories (from 12 of them)" in said
    trajectory, parts = jhima.data.teacher.load(read_meta(meta)[0], 0)
    # Two images of 84 x 56: 3 x 2 patches each; the rest is text at four characters a token.
    text = sum(len(p) for p in parts if isinstance(p, str)) // 4
    assert (
        jhima.data.teacher.estimate_tokens(read_trajectory(read_meta(meta)[0], 0), parts)
        == text + 12
    )
    assert (
        f"{12 * (text + 12):,} tokens in and 8,400 out" in said
        and f"${(12 * (text + 12) * 2 + 8400 * 10) / 1e6:.2f}" in said
    )


def test_statistics_are_the_papers_table(tmp_path, capsys, monkeypatch):
    out = tmp_path / "a.jsonl"
    lines = [
        ("Web", 2, None),
        ("Web", 3, "x"),
        ("Linux", 1, None),
        ("Linux", 1, None),
        ("Linux", 2, "y"),
        ("Web", 0, None),
    ]
    out.write_text(
        "".join(
            json.dumps(
                {
                    "trajectory": str(i),
                    "platform": platform,
                    "subtasks": [{}] * count,
                    "unnecessary": odd,
                    "failed": not count,
                    "odd": ["no end"] * (i == 1),
                }
            )
            + "\n"
            for i, (platform, count, odd) in enumerate(lines)
        )
    )
    monkeypatch.setattr(sys, "argv", ["annotate.py", "--out", str(out), "--stats"])
    annotate.main()
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert table[1:] == [
        ["Linux", "3", "1.33", "33.3%"],
        ["Web", "2", "2.50", "50.0%"],
        ["Total", "5", "1.80", "40.0%"],
        ["failed:", "1;", "no", "end:", "1"],
    ]


def test_one_writer_at_a_time_and_no_foreign_file(tmp_path):
    first = Output(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="another annotate.py"):
        Output(tmp_path / "a.jsonl")
    first.close()
    (tmp_path / "b.jsonl").write_text('{"something": "else"}\n')
    with pytest.raises(ValueError, match="did not write"):
        Output(tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_text() == '{"something": "else"}\n'


@pytest.mark.parametrize("content", ["notes", '{"something": ', "notes\n", '[{"trajectory": "x"}]'])
def test_a_file_that_is_not_ours_is_left_as_it_is(content, meta, tmp_path):
    out = tmp_path / "f"
    out.write_text(content)
    with pytest.raises(SystemExit, match="lines that annotate.py did not write"):
        run(meta, out, "http://127.0.0.1:9/v1", "--estimate")
    assert out.read_text() == content


def test_a_refusal_of_the_setup_ends_the_run_and_is_asked_again(meta, tmp_path):
    out = tmp_path / "a.jsonl"
    with teacher() as server:
        server.faults = ["400"] * 100
        with pytest.raises(SystemExit, match="the teacher m cannot be asked: HTTP 400: 400"):
            run(meta, out, server.url)
        assert rows(out) == {}
        server.faults = []
        run(meta, out, server.url)
        assert len(rows(out)) == 12


def test_a_write_that_fails_stops_everything_in_one_line(meta, tmp_path):
    """The disk is full after a few rows: a limit on a file's size, in a process of its own."""
    out, said = tmp_path / "a.jsonl", tmp_path / "said"
    with teacher() as server:
        process = start_process(limited, meta, out, server.url, said)
        process.join()
        assert said.read_text().startswith("annotate.py: [Errno ")
        assert len(said.read_text().splitlines()) == 1 and server.asked.total() < 12
        run(meta, out, server.url)
        assert len(rows(out)) == 12


def limited(meta, out, url: str, said) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
    try:
        run(meta, out, url)
    except SystemExit as ended:
        said.write_text(str(ended))


def test_batches_of_another_account_are_not_forgotten(meta, tmp_path, monkeypatch):
    out = tmp_path / "a.jsonl"
    with teacher() as server, teacher() as other:
        process = start_process(run, meta, out, server.url, "--batch", "--poll", 60)
        while not server.batches:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with pytest.raises(SystemExit, match=f"holds batches sent to {server.url}"):
            run(meta, out, other.url, "--batch")
        sent, server.batches = server.batches, {}
        monkeypatch.setenv("OPENAI_API_KEY", "another-key")
        with pytest.raises(SystemExit, match="perhaps with another key"):
            run(meta, out, server.url, "--batch")
        server.batches = sent
        run(meta, out, server.url, "--batch", "--poll", 0.02, "--timeout", 20)
        assert len(rows(out)) == 12 and len(server.batches) == 1 and not other.asked


def test_the_reason_of_a_failed_batch_is_said(meta, tmp_path, capsys):
    problem = {"code": "token_limit_exceeded", "message": "Enqueued token limit reached"}
    with teacher() as server:
        server.fails = {"status": "failed", "errors": {"object": "list", "data": [problem]}}
        run(meta, tmp_path / "a.jsonl", server.url, "--batch", "--poll", 0.02)
    said = capsys.readouterr().out
    assert "12 no result in a batch that failed: Enqueued token limit reached" in said


def test_any_character_may_stand_in_a_batch_s_results(meta, tmp_path):
    """Raw line separators, which end no line of JSON."""
    with teacher() as server:
        server.raw = "\u2028\u0085"
        run(meta, tmp_path / "a.jsonl", server.url, "--batch", "--poll", 0.02, "--timeout", 20)
        assert len(rows(tmp_path / "a.jsonl")) == 12 and server.asked.total() == 12
