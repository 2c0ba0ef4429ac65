"""What the channel is compared with: the same engine and tokenizer behind a plain Python model.

One thread takes outputs in their order and sends each token as a response of its own, after
asking whether the client has cancelled: two round trips to the server a token, as the backend
for vLLM has them. `ci/bench/channel` puts this file into a model repository of its own.
"""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np
import triton_python_backend_utils as pb_utils
from inferx.config import EngineConfig
from inferx.engine.client import EngineClient
from inferx.engine.sampling import SamplingParams
from inferx.source import model_roots, resolve
from inferx.text.stream import TextStream
from inferx.text.tokenizer import Tokenizer


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"], args["model_version"])
        config = EngineConfig.from_file(folder / "model.json")
        source = resolve(config.tokenizer or config.model, roots=model_roots(folder))
        self._tokenizer = Tokenizer.from_source(source)
        self._engine = EngineClient(msgspec.structs.replace(config, tokenizer=str(source.path)))
        self._engine.start()
        self._outputs: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._send_all, daemon=True).start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            tensor = partial(pb_utils.get_input_tensor_by_name, request)
            prompt = tensor("text_input").as_numpy()[0].decode()
            params = SamplingParams.parse(
                json.loads(tensor("sampling_parameters").as_numpy()[0].decode())
            )
            reply = request.get_response_sender(), TextStream(self._tokenizer, params)
            self._engine.submit(
                self._tokenizer.encode(prompt),
                [params],
                lambda output, reply=reply: self._outputs.put((*reply, output)),
            )

    def _send_all(self) -> None:
        while True:
            sender, stream, output = self._outputs.get()
            delta = stream.push(output)
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if output.finished else 0
            if sender.is_cancelled():
                self._engine.abort([output.uid])
            text = np.array([delta.text.encode()], dtype=object)
            count = np.array([delta.num_tokens], np.uint32)
            sender.send(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("text_output", text),
                        pb_utils.Tensor("num_output_tokens", count),
                    ]
                ),
                flags=flags,
            )

    def finalize(self) -> None:
        self._engine.close(1.0)
