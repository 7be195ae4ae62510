"""A live replica has no stages: a configuration that asks for several steps in flight is refused before any work."""

from __future__ import annotations

import pytest

from contracts.errors import ConfigError
from replica.config import ReplicaConfig, read_config
from scheduling.config import ReplicaCoreConfig


def test_a_depth_above_one_is_refused_for_a_live_replica() -> None:
    with pytest.raises(ConfigError, match=r"scheduling\.pipeline_depth is 4, but no engine here is a pipeline") as seen:
        ReplicaConfig(replica_id="a", core=ReplicaCoreConfig(pipeline_depth=4))
    assert seen.value.param == "scheduling.pipeline_depth"
    with pytest.raises(ConfigError, match="one step at a time"):
        read_config('{"replica_id": "a", "core": {"pipeline_depth": 2}}')
    assert ReplicaConfig(replica_id="a").core.pipeline_depth == 1
