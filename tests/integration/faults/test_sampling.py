"""Sampling settings at their extremes, alone and in one batch."""

import pytest
from served import Served

CHAT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
SKY = "The sky is blue. The sky is blue. The sky is blue. The sky is"


def test_a_temperature_near_zero_is_greedy(smollm2: Served) -> None:
    greedy = smollm2.generate("The capital of France is", max_tokens=16).text
    for temperature in (1e-4, 1e-5, 1e-6, 1e-30):
        answer = smollm2.generate(
            "The capital of France is", max_tokens=16, temperature=temperature, seed=1
        )
        assert answer.text == greedy


def test_a_huge_top_k_and_greedy_requests_share_a_batch(smollm2: Served) -> None:
    settings = [
        {"temperature": 0},
        {"temperature": 1, "top_k": 9_999_999, "seed": 7},
        {"temperature": 1, "top_k": 1, "seed": 7},
        {"temperature": 1, "top_k": -1, "top_p": 1e-9, "seed": 7},
        {"temperature": 1, "min_p": 1.0, "seed": 7},
        {"temperature": 100, "seed": 7},
    ]
    running = [smollm2.later("Once upon a time", max_tokens=12, **given) for given in settings]
    texts = [request.result().text for request in running]
    greedy = smollm2.generate("Once upon a time", max_tokens=12).text
    assert texts[0] == texts[2] == texts[3] == texts[4] == greedy
    assert smollm2.generate("Once upon a time", max_tokens=12, **settings[1]).text == texts[1]


def test_a_seed_gives_the_same_text_again_and_another_seed_another(smollm2: Served) -> None:
    def text(seed: int) -> str:
        return smollm2.generate("Once", max_tokens=16, temperature=1, seed=seed).text

    assert text(3) == text(3)
    assert len({text(seed) for seed in range(4)}) > 1


def test_choices_of_one_request_differ_and_come_back_in_their_places(smollm2: Served) -> None:
    options = {"max_tokens": 12, "temperature": 1, "seed": 5, "n": 3}
    whole = smollm2.generate("Once", **options)
    streamed = smollm2.streamed("Once", **options)
    assert len(whole.texts) == 3
    assert len(set(whole.texts)) > 1
    assert streamed.texts == whole.texts
    assert streamed.num_output_tokens == whole.num_output_tokens
    assert whole.finish_reasons == streamed.finish_reasons
    assert None not in whole.finish_reasons


def test_min_tokens_counts_outputs_only_and_holds_off_the_end_token(smollm2: Served) -> None:
    plain = smollm2.generate(CHAT, max_tokens=64)
    assert plain.num_output_tokens[0] < 24
    longer = smollm2.generate(CHAT, max_tokens=64, min_tokens=24)
    assert longer.num_output_tokens[0] >= 24
    assert longer.text.startswith(plain.text)


def test_min_tokens_holds_off_stop_strings(synthetic: Served) -> None:
    text = synthetic.generate("Once", max_tokens=60).text
    assert text.count(" the") >= 2
    answer = synthetic.generate("Once", max_tokens=60, min_tokens=10, stop=[" the"])
    assert answer.num_output_tokens[0] > 10
    assert " the" in answer.text, "the first one came before min_tokens"
    assert answer.finish_reasons == ["stop"]


def test_ignore_eos_goes_on_to_max_tokens(smollm2: Served) -> None:
    answer = smollm2.generate(CHAT, max_tokens=40, ignore_eos=True)
    assert (answer.num_output_tokens, answer.finish_reasons) == ([40], ["length"])


@pytest.mark.parametrize("eos", [256, 257])
def test_every_end_token_of_the_generation_config_ends_a_text(byte_model: Served, eos: int) -> None:
    forced = {"logit_bias": {str(eos): 100}, "max_tokens": 8}
    ended = byte_model.generate("abc", **forced)
    assert (ended.text, ended.finish_reasons, ended.num_output_tokens) == ("", ["stop"], [1])
    on = byte_model.generate("abc", ignore_eos=True, **forced)
    assert (on.finish_reasons, on.num_output_tokens) == (["length"], [8])
    late = byte_model.generate("abc", min_tokens=5, **forced)
    assert (late.finish_reasons, late.num_output_tokens) == (["stop"], [6])


def test_a_stop_token_ends_the_text_and_is_not_shown(byte_model: Served) -> None:
    forced = {"logit_bias": {"65": 100}, "max_tokens": 4, "ignore_eos": True}
    shown = byte_model.generate("abc", **forced)
    assert len(shown.text) == 4
    stopped = byte_model.generate("abc", stop_token_ids=[65], **forced)
    assert (stopped.text, stopped.finish_reasons) == ("", ["stop"])
    assert stopped.num_output_tokens == [1]


def test_a_repetition_penalty_counts_the_prompt(smollm2: Served) -> None:
    assert smollm2.generate(SKY, max_tokens=1).text == " blue"
    assert smollm2.generate(SKY, max_tokens=1, repetition_penalty=20).text != " blue"


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_presence_and_frequency_penalties_count_the_output_only(
    smollm2: Served, penalty: str
) -> None:
    assert smollm2.generate(SKY, max_tokens=1, **{penalty: 2}).text == " blue"


def test_a_frequency_penalty_grows_with_each_repetition_and_a_presence_penalty_does_not(
    byte_model: Served,
) -> None:
    options = {"max_tokens": 40, "ignore_eos": True, "logit_bias": {"32": 30}}
    letter = byte_model.generate("abc", **{**options, "max_tokens": 1}).text
    plain = letter * 40
    assert byte_model.generate("abc", **options).text == plain
    assert byte_model.generate("abc", presence_penalty=2, **options).text == plain
    penalized = byte_model.generate("abc", frequency_penalty=2, **options).text
    assert penalized.startswith(letter * 5)
    assert penalized.count(letter) < 40


def test_bad_words_are_not_written(smollm2: Served) -> None:
    assert "blue" not in smollm2.generate(SKY, max_tokens=12, bad_words=["blue"]).text


def test_logprobs_hold_the_sampled_token_and_as_many_others_as_were_asked_for(
    smollm2: Served,
) -> None:
    for count in (0, 1, 20):
        answer = smollm2.generate(SKY, max_tokens=2, logprobs=count, details=("logprobs",))
        assert [len(entry) for entry in answer.logprobs[0]] == [max(1, count)] * 2
        sampled = [next(iter(entry.values())) for entry in answer.logprobs[0]]
        assert sampled[0]["decoded_token"] == " blue"
        assert [found["rank"] for found in sampled] == [1, 1]
