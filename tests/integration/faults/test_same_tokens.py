"""What must not change a text: preemption, the prefix cache, and company in the batch.

float32; greedy, or with a seed.
"""

from served import Served

PROMPTS = [
    "Once upon a time, in a small village by the sea,",
    "The three laws of thermodynamics are",
    "def fibonacci(n):\n",
    "Dear Sir or Madam,\nI am writing to",
    "Q: What is the capital of France?\nA:",
    "A list of colours: red, green,",
]


def test_a_pool_that_forces_preemption_gives_the_texts_of_a_large_one(
    smollm2: Served, small_pool: Served
) -> None:
    # Six texts of some 80 tokens want 30 pages of 16, and there are 20
    options = {"max_tokens": 70, "ignore_eos": True}
    before = small_pool.metric("inferx:num_preemptions_total")
    running = [small_pool.later(prompt, **options) for prompt in PROMPTS]
    answers = [request.result() for request in running]
    large = [smollm2.later(prompt, **options) for prompt in PROMPTS]
    assert [answer.text for answer in answers] == [request.result().text for request in large]
    assert [answer.num_output_tokens for answer in answers] == [[70]] * len(PROMPTS)
    small_pool.wait_for_metric("inferx:num_preemptions_total", lambda count: count > before)
    small_pool.wait_until_idle()


def test_a_prefix_hit_gives_the_text_of_a_miss(smollm2: Served) -> None:
    prompt = "The lighthouse keeper wrote down what the sea did, every hour. " * 8 + "Then"
    hits = "inferx:prefix_cache_hits_total"
    before = smollm2.metric(hits)
    miss = smollm2.generate(prompt, max_tokens=24, cache_salt="a prefix hit")
    hit = smollm2.generate(prompt, max_tokens=24, cache_salt="a prefix hit")
    assert hit.text == miss.text
    smollm2.wait_for_metric(hits, lambda count: count >= before + 64)


def test_a_prefix_is_not_shared_with_another_salt(smollm2: Served) -> None:
    prompt = "A tenant's secret prompt, long enough for several pages of the cache. " * 6
    hits, looked_up = "inferx:prefix_cache_hits_total", "inferx:engine_steps_total"

    def hit_tokens(salt: str | None) -> float:
        before, steps = smollm2.metric(hits), smollm2.metric(looked_up)
        options = {} if salt is None else {"cache_salt": salt}
        smollm2.generate(prompt, max_tokens=2, **options)
        smollm2.wait_for_metric(looked_up, lambda count: count >= steps + 2)
        return smollm2.metric(hits) - before

    smollm2.wait_until_idle()
    assert hit_tokens("tenant a") == 0
    assert hit_tokens("tenant b") == 0
    assert hit_tokens(None) == 0
    assert hit_tokens("tenant a") >= 64


def test_the_batch_invariant_mode_gives_the_same_tokens_alone_and_in_company(
    invariant: Served,
) -> None:
    details = ("num_output_tokens", "logprobs")
    settings = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 11},
        {"temperature": 0.7, "top_p": 0.9, "seed": 12},
    ]
    for options in settings:
        options |= {"max_tokens": 20, "logprobs": 0, "details": details}
    alone = [invariant.streamed(PROMPTS[0], **options) for options in settings]
    company = [invariant.later(prompt, max_tokens=30) for prompt in PROMPTS]
    together = [invariant.later(PROMPTS[0], **options).result() for options in settings]
    for request in company:
        request.result()
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert [answer.logprobs for answer in together] == [answer.logprobs for answer in alone]
