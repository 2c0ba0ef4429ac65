"""The completed configuration, and which instance of a model starts the engine."""

import json

import msgspec
import pytest
from inferx.errors import ConfigError
from inferx.triton.instance import Instance
from inferx.triton.interface import complete_config


class ModelConfig:
    """pb_utils.ModelConfig as far as the auto-completion uses it."""

    def __init__(self, **given):
        self.dict = {"name": "m", "max_batch_size": 0, "input": [], "output": [], **given}

    def as_dict(self):
        return self.dict

    def set_max_batch_size(self, size):
        self.dict["max_batch_size"] = size

    def add_input(self, tensor):
        self.dict["input"].append(tensor)

    def add_output(self, tensor):
        self.dict["output"].append(tensor)

    def set_model_transaction_policy(self, policy):
        self.dict["model_transaction_policy"] = policy


def test_a_bare_line_is_completed_to_the_whole_interface():
    completed = complete_config(ModelConfig()).as_dict()
    assert completed["max_batch_size"] == 0
    assert completed["model_transaction_policy"] == {"decoupled": True}
    assert [(i["name"], i["data_type"], i["dims"], i["optional"]) for i in completed["input"]] == [
        ("text_input", "TYPE_STRING", [1], True),
        ("input_ids", "TYPE_INT32", [-1], True),
        ("stream", "TYPE_BOOL", [1], True),
        ("sampling_parameters", "TYPE_STRING", [1], True),
        ("exclude_input_in_output", "TYPE_BOOL", [1], True),
        ("return_finish_reason", "TYPE_BOOL", [1], True),
        ("return_cumulative_logprob", "TYPE_BOOL", [1], True),
        ("return_logprobs", "TYPE_BOOL", [1], True),
        ("return_num_input_tokens", "TYPE_BOOL", [1], True),
        ("return_num_output_tokens", "TYPE_BOOL", [1], True),
        ("return_num_cached_tokens", "TYPE_BOOL", [1], True),
    ]
    assert completed["output"] == [
        {"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]},
        {"name": "finish_reason", "data_type": "TYPE_STRING", "dims": [-1]},
        {"name": "cumulative_logprob", "data_type": "TYPE_FP32", "dims": [-1]},
        {"name": "logprobs", "data_type": "TYPE_STRING", "dims": [-1]},
        {"name": "num_input_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
        {"name": "num_output_tokens", "data_type": "TYPE_UINT32", "dims": [-1]},
        {"name": "num_cached_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
    ]


@pytest.mark.parametrize("decoupled", [True, False])
def test_an_explicit_transaction_policy_is_honoured(decoupled):
    given = ModelConfig(model_transaction_policy={"decoupled": decoupled})
    completed = complete_config(given).as_dict()
    assert completed["model_transaction_policy"] == {"decoupled": decoupled}


def test_a_batch_size_of_triton_is_refused():
    with pytest.raises(ConfigError) as error:
        complete_config(ModelConfig(max_batch_size=8))
    assert str(error.value) == (
        "config.pbtxt: max_batch_size is 8: InferX batches requests by itself, token by token; "
        "remove the line or set it to 0"
    )


def instance(name, device=0, kind="GPU", groups=None, directory="/models/m") -> Instance:
    groups = groups or [{"name": "m", "kind": f"KIND_{kind}", "count": 1, "gpus": [0, 1]}]
    return Instance.from_args(
        {
            "model_name": "m",
            "model_version": "1",
            "model_instance_name": name,
            "model_instance_kind": kind,
            "model_instance_device_id": str(device),
            "model_repository": str(directory),
            "model_config": json.dumps({"instance_group": groups}),
        }
    )


def test_with_an_instance_on_each_gpu_only_the_lowest_device_starts_an_engine():
    instance("m_0", device=0).require_first()
    with pytest.raises(ConfigError) as error:
        instance("m_0", device=1).require_first()
    assert str(error.value) == (
        "model 'm': instance 'm_0' on device 1 refuses to start: one engine serves the whole "
        "model, and instance 'm_0' on device 0 starts it; put "
        "`instance_group [{ count: 1 kind: KIND_MODEL }]` into config.pbtxt"
    )


def test_of_several_copies_only_the_first_starts_an_engine():
    groups = [{"name": "m_0", "kind": "KIND_CPU", "count": 2, "gpus": []}]
    instance("m_0_0", kind="CPU", groups=groups).require_first()
    with pytest.raises(ConfigError, match="'m_0_1' on device 0 refuses"):
        instance("m_0_1", kind="CPU", groups=groups).require_first()


def test_an_instance_on_the_cpu_keeps_the_engine_there(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.json").write_text('{"model": "x"}')
    on_cpu = instance("m_0", kind="CPU", directory=tmp_path).engine_config()
    anywhere = instance("m_0", kind="MODEL", directory=tmp_path).engine_config()
    assert (on_cpu.device, anywhere.device) == ("cpu", "auto")
    assert msgspec.structs.replace(on_cpu, device="auto") == anywhere


@pytest.mark.parametrize(
    ("visible", "device", "own"), [(None, 1, "1"), ("4,6", 1, "6"), ("GPU-a,GPU-b", 0, "GPU-a")]
)
def test_the_engine_sees_the_instances_gpu_alone(monkeypatch, visible, device, own):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    instance("m_0", device=device).show_only_own_gpu()
    import os

    assert os.environ["CUDA_VISIBLE_DEVICES"] == own
