"""A model over windows of text, on the kernels' references.

The first tokens of a window are its context. They stand for a prompt, whose prefill is dense: they
are never masked, measured or scored. The rest of the window stands for decoded tokens; it is
computed at once, which gives each of them what it would get alone.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from inferx.errors import SparsityError
from inferx.model.activations import Activations
from inferx.model.batch import ForwardBatch, KVCache
from inferx.model.footprint import dtype_name
from inferx.model.llama import LlamaForCausalLM, Step
from inferx.model.loading import LoadedModel
from inferx.perplexity import surprise, windows
from inferx.text.tokenizer import Tokenizer

WINDOW = 512  # tokens
CONTEXT = 128  # of them
BATCH = 4  # windows that are computed at once, so that threads wait less for each other
COUNTED = WINDOW - CONTEXT
_CHARACTERS = 16  # a token, at most, of any text worth measuring: more of the text is not encoded

Window = list[int]


class Text:
    """A text in two halves that share no token: thresholds are found on the first, and judged on
    the second."""

    def __init__(self, text: str, tokenizer: Tokenizer, name: str) -> None:
        self._text, self._tokenizer, self._name = text, tokenizer, name

    def whole(self, num_tokens: int) -> list[Window]:
        return self._windows(self._text, num_tokens, "")

    def calibration(self, num_tokens: int) -> list[Window]:
        return self._windows(self._text[: len(self._text) // 2], num_tokens, "half of ")

    def held_out(self, num_tokens: int) -> list[Window]:
        return self._windows(self._text[len(self._text) // 2 :], num_tokens, "half of ")

    def _windows(self, text: str, num_tokens: int, which: str) -> list[Window]:
        """As many as count `num_tokens`, context excluded. Raises SparsityError."""
        count = max(2, -(-num_tokens // COUNTED))  # two: one has no standard error
        part = text[: count * WINDOW * _CHARACTERS]
        found = windows(self._tokenizer.encode(part, add_special_tokens=False), WINDOW)
        if len(found) < count:
            raise SparsityError(
                f"{which}{self._name} has {len(found)} windows of {WINDOW} tokens, and "
                f"{num_tokens} tokens to count take {count}: give a longer text, or lower --tokens"
            )
        return found[:count]


def data_hash(texts: Sequence[Window]) -> str:
    return hashlib.sha256(array("q", [token for text in texts for token in text])).hexdigest()


def batches(texts: Sequence[Window]) -> list[Sequence[Window]]:
    return [texts[at : at + BATCH] for at in range(0, len(texts), BATCH)]


class WindowedModel:
    """A Llama-like model that computes up to BATCH windows at once: `start` comes first.

    num_counted: COUNTED tokens of each of them, one window's after another's.
    """

    _windows: Sequence[Window]
    _counted: ForwardBatch
    _step: Step  # of the counted tokens

    def __init__(self, loaded: LoadedModel) -> None:
        assert isinstance(loaded.model, LlamaForCausalLM)
        self.model = loaded.model
        self.config = loaded.config
        self.dtype = dtype_name(loaded.dtype)
        self._device = loaded.device
        shape = (BATCH, WINDOW, self.config.num_kv_heads, self.config.head_dim)
        self._kv = [
            KVCache(
                *(torch.zeros(shape, dtype=loaded.kv_dtype, device=self._device) for _ in range(2))
            )
            for _ in range(self.config.num_layers)
        ]

    def _batch(self, ids: Tensor, start: int, end: int) -> ForwardBatch:
        """The windows' tokens from start to end; ids: [num_windows, WINDOW]."""
        num_windows, length = len(ids), end - start
        rows = torch.arange(num_windows, device=self._device).unsqueeze(1)
        places = torch.arange(start, end, device=self._device)
        return ForwardBatch(
            token_ids=ids[:, start:end].flatten(),
            positions=places.repeat(num_windows),
            slot_mapping=(rows * WINDOW + places).flatten(),
            query_start=length * torch.arange(num_windows + 1, device=self._device).int(),
            seq_lens=torch.full_like(rows[:, 0], end).int(),
            block_table=rows.int(),
            logits_indices=torch.arange(num_windows * length, device=self._device),
            num_decodes=0,
            max_query_len=length,
            max_seq_len=end,
        )

    @torch.inference_mode()
    def start(self, windows: Sequence[Window]) -> None:
        """Computes the windows' contexts; what follows is about the rest of them."""
        self._windows = windows
        ids = torch.tensor(windows, device=self._device)
        self._counted = self._batch(ids, CONTEXT, WINDOW)
        self._step = self.model.step(self._counted, self._kv[0])
        self.model.forward(self._batch(ids, 0, CONTEXT), self._kv)

    @torch.inference_mode()
    def hidden(self, activations: Activations | None = None) -> Tensor:
        """The final norm's output: [num_counted, hidden_size]."""
        return self.model.forward(self._counted, self._kv, activations)

    @torch.inference_mode()
    def surprises(self, activations: Activations | None = None) -> list[float]:
        """By window, the mean -log p of the tokens that follow counted ones."""
        hidden = self.hidden(activations).split(COUNTED)
        return [
            surprise(rows, self.model.logits, window[CONTEXT:]) / (COUNTED - 1)
            for rows, window in zip(hidden, self._windows, strict=True)
        ]

    def embed(self) -> Tensor:
        """What the first layer gets: [num_counted, hidden_size]."""
        return self.model.embed_tokens(self._counted.token_ids)

    @torch.inference_mode()
    def attended(
        self, index: int, x: Tensor, activations: Activations | None = None
    ) -> tuple[Tensor, Tensor]:
        """The first half of a layer, on [num_counted, hidden_size]: what its MLP gets, and the
        residual that the MLP's output is added to."""
        layer, kv = self.model.layers[index], self._kv[index]
        step = self._step._replace(activations=activations)
        residual = x.clone()
        output = layer.attention(layer.input_norm(x), step, kv)
        return layer.post_attention_norm.add(output, residual), residual

    @torch.inference_mode()
    def fed_forward(
        self, index: int, normed: Tensor, residual: Tensor, activations: Activations | None = None
    ) -> Tensor:
        """The second half of a layer, on what the first gave for any tokens."""
        step = self._step._replace(activations=activations)
        return residual + self.model.layers[index].mlp(normed, step)
