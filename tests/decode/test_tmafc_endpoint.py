"""The OpenAI-compatible sampler against a real HTTP server that fails as real ones do."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from assay._core.errors import InputError
from assay.decode.tmafc import TMAFC, LoggedSampler, OpenAISampler, SamplerError, Task, record_samples

pytest.importorskip("openai")


class Endpoint:
    """A chat endpoint. `script` holds what goes wrong, request by request; afterwards all goes well."""

    def __init__(self, *script, choices_per_request=None, reply='{"a": 1}'):
        self.script, self.requests, self.keys = list(script), [], []
        self.n_choices = 0
        self.choices_per_request, self.reply = choices_per_request, reply
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def _handler(endpoint):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with endpoint.lock:
                    endpoint.requests.append(body)
                    endpoint.keys.append(self.headers["Authorization"])
                    fault = endpoint.script.pop(0) if endpoint.script else None
                if fault == "hang":
                    time.sleep(0.8)
                    return
                if fault == "cut":
                    self.connection.close()
                    return
                if fault:
                    self._send(fault, {"error": {"message": f"fault {fault}", "type": "x"}})
                    return
                n = min(body.get("n") or 1, endpoint.choices_per_request or 10**9)
                with endpoint.lock:
                    numbers = range(endpoint.n_choices, endpoint.n_choices + n)
                    endpoint.n_choices += n
                choices = [
                    {"index": i, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": endpoint.reply.replace("NUMBER", str(number))}}
                    for i, number in enumerate(numbers)
                ]  # fmt: skip
                usage = {"prompt_tokens": 11, "completion_tokens": 4 * n, "total_tokens": 11 + 4 * n}
                answer = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
                self._send(200, {**answer, "choices": choices, "usage": usage})

            def _send(self, status, document):
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("retry-after-ms", "5")
                self.end_headers()
                self.wfile.write(content)

        return Handler


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-test")
    made = []

    def start(*script, **options):
        made.append(Endpoint(*script, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_an_answer_comes_from_the_endpoint_with_its_tokens(endpoint):
    server = endpoint()
    found = TMAFC(OpenAISampler("m", server.url), schema=["a"], classifier="rule").answer("How many?")
    assert (found.answer, found.n_samples, found.n_tokens, found.n_prompt_tokens) == ({"a": 1}, 4, 16, 44)
    assert server.requests[0]["model"] == "m"
    assert "How many?" in server.requests[0]["messages"][0]["content"]


def test_all_samples_of_a_batch_are_one_request_where_the_server_can(endpoint):
    server = endpoint()
    replies = OpenAISampler("m", server.url)("?", 8)
    assert (len(replies), len(server.requests)) == (8, 1)
    assert (sum(r.tokens for r in replies), sum(r.prompt_tokens for r in replies)) == (32, 11)


def test_a_server_that_gives_one_choice_a_request_is_asked_until_all_are_there(endpoint):
    server = endpoint(choices_per_request=1, reply="NUMBER")
    assert OpenAISampler("m", server.url)("?", 3) == ["0", "1", "2"]
    assert [request["n"] for request in server.requests] == [3, 2, 1]


@pytest.mark.parametrize("fault", [429, 500, 503, "cut", "hang"])
def test_a_fault_that_passes_is_tried_again(endpoint, fault):
    server = endpoint(fault)
    assert OpenAISampler("m", server.url, timeout=0.5)("?", 2) == ['{"a": 1}'] * 2
    assert len(server.requests) == 2


def test_every_reply_is_kept_through_rate_limits_errors_and_timeouts(endpoint, tmp_path):
    faults = [429, None, 503, "hang", None, 500, 429, None, "cut"]
    server = endpoint(*faults, choices_per_request=2, reply='{"a": NUMBER}')
    log = tmp_path / "replies.jsonl"
    sampler = LoggedSampler(OpenAISampler("m", server.url, timeout=0.5), log, batch_size=2)
    (record,) = record_samples(sampler, [Task("?", {"a": ""})], 9)
    assert [sample["a"] for sample in record.samples] == list(range(9))
    assert [json.loads(json.loads(line)["reply"])["a"] for line in log.read_text().splitlines()] == list(range(9))


def test_an_endpoint_that_stays_down_is_reported_and_what_it_gave_before_is_kept(endpoint, tmp_path):
    server = endpoint(None, None, *[503] * 3, choices_per_request=1, reply="NUMBER")
    log = tmp_path / "replies.jsonl"
    with pytest.raises(SamplerError, match=r"m at http://127.* fails \(3 tries\): .*503"):
        LoggedSampler(OpenAISampler("m", server.url, max_retries=2), log)("?", 5)
    replies = LoggedSampler(OpenAISampler("m", server.url, max_retries=2), log)("?", 5)
    assert replies == ["0", "1", "2", "3", "4"]
    assert server.n_choices == 5  # nothing was paid for twice


def test_a_rate_limit_that_does_not_end_is_named(endpoint):
    server = endpoint(*[429] * 2)
    with pytest.raises(SamplerError, match=r"is over its rate limit \(2 tries\)"):
        OpenAISampler("m", server.url, max_retries=1)("?", 1)


def test_a_timeout_that_does_not_end_is_named(endpoint):
    server = endpoint(*["hang"] * 2)
    with pytest.raises(SamplerError, match=r"did not answer in time \(1 tries\)"):
        OpenAISampler("m", server.url, max_retries=0, timeout=0.2)("?", 1)


def test_a_server_that_is_not_there_is_named(endpoint):
    with pytest.raises(SamplerError, match="cannot be reached"):
        OpenAISampler("m", "http://127.0.0.1:9/v1", max_retries=0)("?", 1)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (401, "refuses the key; check the environment variable OPENAI_API_KEY"),
        (404, r"refuses the request \(404\)"),
        (400, r"refuses the request \(400\)"),
    ],
)
def test_what_another_try_would_not_mend_is_the_users_to_correct(endpoint, fault, message):
    server = endpoint(fault)
    with pytest.raises(InputError, match=message):
        OpenAISampler("m", server.url)("?", 1)
    assert len(server.requests) == 1


def test_the_key_comes_from_the_environment_and_reaches_no_log(endpoint, tmp_path):
    server = endpoint()
    sampler = LoggedSampler(OpenAISampler("m", server.url), tmp_path / "replies.jsonl")
    TMAFC(sampler, schema=["a"], classifier="rule", history=tmp_path / "history.jsonl").answer("?")
    assert server.keys[0] == "Bearer sk-secret-of-the-test"
    for file in tmp_path.iterdir():
        assert "secret" not in file.read_text(encoding="utf-8")


def test_a_local_server_needs_no_key(endpoint, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    assert OpenAISampler("m", endpoint().url)("?", 1) == ['{"a": 1}']


def test_openai_itself_needs_a_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InputError, match="the environment variable OPENAI_API_KEY is not set"):
        OpenAISampler("gpt-4o-mini")


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(InputError, match=r"needs the package 'openai'.* pip install 'assay-ml\[openai\]'"):
        OpenAISampler("m", "http://127.0.0.1:9/v1")


def test_temperature_zero_is_warned_about(endpoint):
    with pytest.warns(UserWarning, match="temperature 0"):
        OpenAISampler("m", endpoint().url, temperature=0)
