"""What Triton tells an instance of a model about itself, and which instance starts the engine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inferx.config import EngineConfig
from inferx.errors import ConfigError


class Instance(NamedTuple):
    """One instance of one version of a model."""

    model: str
    version: str
    name: str  # of the instance
    kind: str  # GPU | CPU | MODEL
    device: int
    directory: Path  # of the version: it holds model.json
    decoupled: bool
    all: tuple[tuple[int, str], ...]  # device and name of every instance, the first one first

    @classmethod
    def from_args(cls, args: Mapping[str, str]) -> Instance:
        """`args` is what Triton gives to `initialize`."""
        config = json.loads(args["model_config"])
        return cls(
            model=args["model_name"],
            version=args["model_version"],
            name=args["model_instance_name"],
            kind=args["model_instance_kind"],
            device=int(args["model_instance_device_id"]),
            directory=Path(args["model_repository"]) / args["model_version"],
            decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
            all=tuple(sorted(_instances(config))),
        )

    def require_first(self) -> None:
        """One engine serves a model: the instance on the lowest device starts it.

        Raises ConfigError on every other instance. Triton makes such others when a configuration
        leaves the instance group open (one on each GPU) or counts more than one.
        """
        first_device, first_name = self.all[0]
        is_copy = self.name != first_name and (self.device, self.name) in self.all
        if self.device != first_device or is_copy:
            raise ConfigError(
                f"model {self.model!r}: instance {self.name!r} on device {self.device} refuses to "
                f"start: one engine serves the whole model, and instance {first_name!r} on device "
                f"{first_device} starts it; put `instance_group [{{ count: 1 kind: KIND_MODEL }}]` "
                "into config.pbtxt"
            )

    def engine_config(self) -> EngineConfig:
        """model.json, with the device that the instance stands for. Raises ConfigError."""
        config = EngineConfig.from_file(self.directory / "model.json")
        if self.kind == "CPU" and config.device == "auto":
            return msgspec.structs.replace(config, device="cpu")
        return config

    def show_only_own_gpu(self) -> None:
        """Lets the engine process, which inherits the environment, see this instance's GPU alone.

        Triton counts devices within CUDA_VISIBLE_DEVICES where that is set.
        """
        if self.kind != "GPU":
            return
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        own = visible[self.device] if self.device < len(visible) else ""
        os.environ["CUDA_VISIBLE_DEVICES"] = own or str(self.device)


def _instances(config: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    for group in config["instance_group"]:
        for device in group["gpus"] or [0]:
            for copy in range(group["count"]):
                yield device, f"{group['name']}_{copy}"
