"""What the client sends, and what it makes of Triton's responses."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferx_client import Completion, Delta, InferenceError
from inferx_client.wire import deltas, generate_request, set_timeout
from tritonclient.grpc import service_pb2


def packed(*texts: str) -> bytes:
    encoded = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(data)) + data for data in encoded)


def response(choice: int | None = None, **outputs: tuple[str, bytes]):
    answer = service_pb2.ModelStreamInferResponse()
    for name, (datatype, raw) in outputs.items():
        answer.infer_response.outputs.add(name=name, datatype=datatype)
        answer.infer_response.raw_output_contents.append(raw)
    if choice is not None:
        answer.infer_response.parameters["choice"].int64_param = choice
    return answer


def inputs_of(request) -> dict[str, bytes]:
    names = [tensor.name for tensor in request.inputs]
    return dict(zip(names, request.raw_input_contents, strict=True))


def test_a_text_prompt_becomes_the_tensors_of_the_interface() -> None:
    request = generate_request(
        "smollm2", "héllo", stream=True, sampling={"max_tokens": 3}, timeout=1.5, request_id="r1"
    )
    inputs = inputs_of(request)
    assert inputs["text_input"] == struct.pack("<I", 6) + "héllo".encode()
    assert inputs["stream"] == b"\1"
    assert inputs["exclude_input_in_output"] == b"\1"
    assert json.loads(inputs["sampling_parameters"][4:]) == {"max_tokens": 3}
    # What the vLLM backend, and an ensemble made for it, has not declared would be refused
    asked = {name: value for name, value in inputs.items() if name.startswith("return_")}
    assert asked == dict.fromkeys(
        ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens"), b"\1"
    )
    assert request.model_name == "smollm2"
    assert request.id == "r1"
    assert request.parameters["timeout"].int64_param == 1_500_000


def test_token_ids_go_as_input_ids() -> None:
    request = generate_request("m", [1, 2, 70000], stream=False, sampling={})
    tensor = request.inputs[0]
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("input_ids", "INT32", [3])
    assert inputs_of(request)["input_ids"] == struct.pack("<3i", 1, 2, 70000)
    assert "text_input" not in inputs_of(request)


@pytest.mark.parametrize("prompt", [[2**31], [1.5], ["Hello"]])
def test_what_is_neither_text_nor_token_ids_is_refused(prompt: list) -> None:
    with pytest.raises(InferenceError, match="the prompt is neither text nor token ids") as error:
        generate_request("m", prompt, stream=False, sampling={})
    assert error.value.status == "INVALID_ARG"


def test_half_a_character_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InferenceError) as error:
        generate_request("m", "ok \ud800", stream=False, sampling={})
    assert (error.value.status, error.value.message) == (
        "INVALID_ARG",
        "the prompt has an unpaired surrogate at character 3: send valid Unicode",
    )


def test_a_streamed_response_is_one_delta_of_its_choice() -> None:
    found = deltas(
        response(
            choice=2,
            text_output=("BYTES", packed("Paris ✓")),
            finish_reason=("BYTES", packed("None")),
            num_output_tokens=("UINT32", struct.pack("<I", 2)),
            num_input_tokens=("UINT32", struct.pack("<I", 9)),
            num_cached_tokens=("UINT32", struct.pack("<I", 8)),
            cumulative_logprob=("FP32", struct.pack("<f", -0.5)),
            logprobs=("BYTES", packed('[{"5": {"logprob": -0.5}}]')),
        )
    )
    assert found == [
        Delta(
            text="Paris ✓",
            choice=2,
            finish_reason=None,
            num_output_tokens=2,
            num_input_tokens=9,
            num_cached_tokens=8,
            cumulative_logprob=-0.5,
            logprobs=[{"5": {"logprob": -0.5}}],
        )
    ]


def test_a_whole_response_holds_an_element_per_choice() -> None:
    completion = Completion()
    for delta in deltas(
        response(
            text_output=("BYTES", packed("a", "bc")),
            finish_reason=("BYTES", packed("stop", "length")),
            num_output_tokens=("UINT32", struct.pack("<2I", 1, 2)),
            num_input_tokens=("UINT32", struct.pack("<I", 4)),
        )
    ):
        completion.add(delta)
    assert completion.texts == ["a", "bc"]
    assert completion.finish_reasons == ["stop", "length"]
    assert completion.num_output_tokens == [1, 2]
    assert completion.num_input_tokens == 4


@pytest.mark.parametrize("choice", [None, 0, 1, 2])
def test_a_streamed_response_of_several_choices_tells_them_by_position(choice: int | None) -> None:
    texts = ["", "", ""]
    texts[choice or 0] = "Paris"
    found = deltas(response(choice=choice, text_output=("BYTES", packed(*texts))))
    assert [(delta.choice, delta.text) for delta in found] == list(enumerate(texts))


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("UNAVAILABLE: the queue is full", "UNAVAILABLE", "the queue is full"),
        ("INVALID_ARG: top_p is 'x':\nno", "INVALID_ARG", "top_p is 'x':\nno"),
        ("it broke", "UNKNOWN", "it broke"),
    ],
)
def test_a_response_that_carries_an_error_raises_it_with_the_status_that_it_begins_with(
    text, status, message
):
    with pytest.raises(InferenceError) as error:
        deltas(service_pb2.ModelStreamInferResponse(error_message=text))
    assert (error.value.status, error.value.message) == (status, message)


@given(st.lists(st.tuples(st.integers(0, 3), st.text())))
def test_a_completion_is_the_concatenation_of_its_deltas(parts: list[tuple[int, str]]) -> None:
    completion = Completion()
    for choice, text in parts:
        completion.add(Delta(text=text, choice=choice))
    for choice, text in enumerate(completion.texts):
        assert text == "".join(part for of, part in parts if of == choice)


@pytest.mark.parametrize(
    ("seconds", "microseconds"), [(1.5, 1_500_000), (1e-9, 1), (0.0, 1), (-3.0, 1)]
)
def test_a_time_that_is_over_is_not_sent_as_none(seconds: float, microseconds: int) -> None:
    """0 means without a limit."""
    request = generate_request("m", "Once", stream=True, sampling={})
    set_timeout(request, seconds)
    assert request.parameters["timeout"].int64_param == microseconds
