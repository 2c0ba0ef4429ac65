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
from inferx.model.llama import LlamaForCausalLM
from inferx.model.loading import LoadedModel
from inferx.perplexity import surprise, windows
from inferx.text.tokenizer import Tokenizer

WINDOW = 512  # tokens
CONTEXT = 128  # of them
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


class WindowedModel:
    """A Llama-like model that computes one window at a time: `start` comes first."""

    def __init__(self, loaded: LoadedModel) -> None:
        assert isinstance(loaded.model, LlamaForCausalLM)
        self.model = loaded.model
        self.config = loaded.config
        self.dtype = dtype_name(loaded.dtype)
        self._device = loaded.device
        shape = (1, WINDOW, self.config.num_kv_heads, self.config.head_dim)
        self._kv = [
            KVCache(
                *(torch.zeros(shape, dtype=loaded.kv_dtype, device=self._device) for _ in range(2))
            )
            for _ in range(self.config.num_layers)
        ]
        self._context = self._batch(0, CONTEXT)
        self._counted = self._batch(CONTEXT, WINDOW)
        self._tokens: Window = []

    def _batch(self, start: int, end: int) -> ForwardBatch:
        """A window's tokens from start to end; their ids are still to come."""
        places = torch.arange(start, end, device=self._device)
        ends = [[0, end - start], [end]]
        query_start, seq_lens = (
            torch.tensor(numbers, dtype=torch.int32, device=self._device) for numbers in ends
        )
        return ForwardBatch(
            token_ids=places,
            positions=places,
            slot_mapping=places,
            query_start=query_start,
            seq_lens=seq_lens,
            block_table=torch.zeros(1, 1, dtype=torch.int32, device=self._device),
            logits_indices=places,
            num_decodes=0,
            max_query_len=end - start,
            max_seq_len=end,
        )

    @torch.inference_mode()
    def start(self, window: Window) -> None:
        """Computes the window's context; what follows is about the rest of it."""
        ids = torch.tensor(window, device=self._device)
        self._tokens = window[CONTEXT:]
        self._counted = self._counted._replace(token_ids=ids[CONTEXT:])
        self.model.forward(self._context._replace(token_ids=ids[:CONTEXT]), self._kv)

    @torch.inference_mode()
    def hidden(self, activations: Activations | None = None) -> Tensor:
        """The final norm's output: [COUNTED, hidden_size]."""
        return self.model.forward(self._counted, self._kv, activations)

    @torch.inference_mode()
    def surprise(self, activations: Activations | None = None) -> float:
        """The mean -log p of the tokens that follow counted ones."""
        hidden = self.hidden(activations)
        return surprise(hidden, self.model.logits, self._tokens) / (COUNTED - 1)

    def embed(self) -> Tensor:
        """What the first layer gets: [COUNTED, hidden_size]."""
        return self.model.embed_tokens(self._counted.token_ids)

    @torch.inference_mode()
    def block(self, index: int, x: Tensor, activations: Activations | None = None) -> Tensor:
        """One layer with its norms and residual additions, on [COUNTED, hidden_size]."""
        layer, kv = self.model.layers[index], self._kv[index]
        step = self.model.step(self._counted, kv, activations)
        residual = x.clone()
        attended = layer.attention(layer.input_norm(x), step, kv)
        normed = layer.post_attention_norm.add(attended, residual)
        return residual.add_(layer.mlp(normed, step))
