"""Vidur (MLSys'24; PyPI 0.0.26) on the same requests and step times; runs under the Python that Vidur is installed in.

    <python of vidur> vidur_side.py < case.json        (made by `experiments.scale.measuring`; nothing of ours)

The wheel holds no profiles; it would fetch them, or predictions made from them, from a public store. Its lookup tables
are filled with the formula of the case instead, in Vidur's own granularity, before the clock starts: what is measured
is its event loop, its Sarathi scheduler and its metrics, with charts and traces off. Prints one line of JSON.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, process_time
from typing import Any

MAX_TOKENS = 16_384
MAX_CHUNK = 4096
CHUNK_STEP = 32
"""Vidur rounds chunks of a prompt up to this; it is no setting."""
GRANULARITY = 64
"""Of contexts, in tokens: a setting of Vidur's, 256 unless set."""
DAY = "day"
_FREE = (
    *("attn_post_proj", "mlp_up_proj", "mlp_down_proj", "mlp_act", "attn_rope", "attn_kv_cache_save"),
    *("input_layernorm", "post_attention_layernorm", "add"),
)


Table = dict[tuple[int, ...], float]


def tables(cost: dict[str, float], layers: int, granularity: int, batch: int) -> dict[str, Table]:
    """Milliseconds of one layer: a step's fixed part in one of its operations, the rest in attention, others nothing.

    Vidur looks attention up with what it knows exactly (decode rows), with contexts rounded up to `granularity` (the
    mean of decode rows; of a chunk what it sees, itself included) and chunks rounded up to `CHUNK_STEP`. An entry holds
    what our formula gives in the middle of all that is rounded to it, so that steps are neither longer nor shorter on
    the whole. What a token costs beside attention is therefore in attention's tables too: elsewhere it would be looked
    up by tokens rounded up to 8.
    """
    ms = 1e3 / layers
    contexts = range(0, MAX_TOKENS + 1, granularity)
    nothing: Table = {(tokens,): 0.0 for tokens in range(1, MAX_TOKENS + 1)}
    found: dict[str, Table] = dict.fromkeys(_FREE, nothing)
    found["attn_pre_proj"] = {(tokens,): cost["a0"] * ms for tokens in range(1, MAX_TOKENS + 1)}
    a1, b0, b1, b2, b3 = (cost[name] for name in ("a1", "b0", "b1", "b2", "b3"))
    found["attn_decode"] = {
        (rows, context): ((a1 + b3) * rows + b2 * rows * _middle(context, granularity)) * ms
        for rows in range(1, batch + 1)
        for context in contexts
    }
    found["attn_prefill"] = {
        (seen, rounded): (a1 * chunk + b0 * max(0.0, _middle(seen, granularity) - chunk) * chunk + b1 * chunk**2) * ms
        for seen in contexts
        for rounded in range(CHUNK_STEP, MAX_CHUNK + 1, CHUNK_STEP)
        for chunk in (_middle(rounded, CHUNK_STEP),)
    }
    return found


def _middle(rounded: int, step: int) -> float:
    """Of the whole numbers that are rounded up to it."""
    return max(0.0, rounded - (step - 1) / 2)


def write_trace(path: Path, rows: list[list[float]]) -> None:
    """As Vidur's trace replay wants it."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Date", "Time", "PromptTokenCount", "CompletionTokenCount"])
        writer.writerows([DAY, at_s, int(prompt), int(output)] for at_s, prompt, output in rows)


def simulation(case: dict[str, Any], folder: Path) -> Any:
    """Vidur's simulator, ready to run."""
    sklearn_side = import_module("vidur.execution_time_predictor.sklearn_execution_time_predictor")
    config = import_module("vidur.config.config")
    predictor = sklearn_side.SklearnExecutionTimePredictor
    predictor._load_predictions_from_hf = lambda self: tables(
        *(case["cost"], self._model_config.num_layers),
        *(self._config.kv_cache_prediction_granularity, self._config.prediction_max_batch_size),
    )
    import_module("vidur.utils.random").set_seeds(1)
    settings = config.SimulationConfig(
        log_level="error",
        cluster_config=config.ClusterConfig(
            num_replicas=case["replicas"],
            replica_config=config.ReplicaConfig(
                model_name="meta-llama/Llama-3-8B",
                num_pipeline_stages=1,
                tensor_parallel_size=1,
                device="a100",
                network_device="a100_dgx",
            ),
            cache_config=config.CacheConfig(num_blocks=case["num_blocks"]),
            global_scheduler_config=config.RoundRobinGlobalSchedulerConfig(),
            replica_scheduler_config=config.SarathiSchedulerConfig(
                batch_size_cap=case["batch"], chunk_size=case["chunk"]
            ),
        ),
        request_generator_config=config.TraceRequestGeneratorConfig(
            trace_file=str(folder / "trace.csv"),
            date=DAY,
            prefill_scale_factor=1,
            time_scale_factor=1,
            max_tokens=MAX_TOKENS,
        ),
        execution_time_predictor_config=config.RandomForrestExecutionTimePredictorConfig(
            prediction_max_tokens_per_request=MAX_TOKENS,
            prediction_max_batch_size=case["batch"],
            prediction_max_prefill_chunk_size=MAX_CHUNK,
            attention_decode_batching_overhead_fraction=0.0,
            kv_cache_prediction_granularity=GRANULARITY,
            use_native_execution_time_predictor=case["native"],
            cache_dir=str(folder / "cache"),
        ),
        metrics_config=config.MetricsConfig(
            enable_chrome_trace=False, store_plots=False, output_dir=str(folder / "output")
        ),
    )
    return import_module("vidur.simulator").Simulator(settings)


def main() -> None:
    """One simulation."""
    os.environ.update(WANDB_MODE="disabled", HF_HUB_OFFLINE="1")
    case = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_trace(folder / "trace.csv", case["requests"])
        simulator = simulation(case, folder)
        simulator._write_output = lambda: None
        ended: list[tuple[float, float]] = []
        store = simulator.metric_store
        tell = store._on_request_end

        def on_request_end(time: float, request: Any) -> None:
            ended.append((request.prefill_completed_at - request.arrived_at, time - request.arrived_at))
            tell(time, request)

        store._on_request_end = on_request_end
        wall, cpu = perf_counter(), process_time()
        simulator.run()
        wall, cpu = perf_counter() - wall, process_time() - cpu
    ttft, e2e = (sorted(values) for values in zip(*ended, strict=True))
    at = {share: min(len(ended) - 1, int(share * len(ended))) for share in (0.5, 0.9)}
    told = {
        "wall_s": wall,
        "cpu_s": cpu,
        "peak_mb": getrusage(RUSAGE_SELF).ru_maxrss / 1024,
        "requests": len(ended),
        "events": import_module("vidur.events.base_event").BaseEvent.generate_id(),
        "steps": import_module("vidur.entities.batch").Batch.generate_id(),
        "virtual_s": simulator._time,
        "ttft_p50_s": ttft[at[0.5]],
        "ttft_p90_s": ttft[at[0.9]],
        "e2e_mean_s": sum(e2e) / len(e2e),
        "e2e_p50_s": e2e[at[0.5]],
        "e2e_p90_s": e2e[at[0.9]],
    }
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
