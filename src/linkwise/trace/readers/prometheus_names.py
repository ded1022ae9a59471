"""Which metrics a diagnosis asks for, and what they are called as facts.

A name is looked up without its `_total` and with `_` for the `:` of `vllm:`, as some collectors write it. Facts:
vllm-project/vllm docs/usage/metrics.md and the NIXL connector's stats.py; sgl-project/sglang
docs/references/production_metrics.md (its MB and GB are 2^20 and 2^30); NVIDIA/TensorRT-LLM's and Triton's metrics
documentation; ai-dynamo/dynamo docs/observability; NVIDIA/dcgm-exporter etc/default-counters.csv; prometheus/
node_exporter collector/infiniband_linux.go and netstat_linux.go; google/cadvisor docs/storage/prometheus.md;
intelligent-machine-learning/dlrover xpu_timer README.
"""

from typing import NamedTuple

from linkwise.trace.facts import Kind

MIB_PER_MB = 2**20 / 1e6


class Rule(NamedTuple):
    """What a metric says. scale: to the fact's unit. side: the pool whose engines have it above 0."""

    kind: Kind
    name: str
    scale: float = 1.0
    unit: str = ""
    side: str = ""


def _gauges(prefix: str, *rows: tuple[str, str]) -> dict[str, Rule]:
    return {f"{prefix}_{metric}": Rule("gauge", f"serve.{name}") for metric, name in rows}


def _seconds(prefix: str, *rows: tuple[str, str]) -> dict[str, Rule]:
    return {f"{prefix}_{metric}": Rule("gauge", f"serve.{name}", 1.0, "s") for metric, name in rows}


def _counters(prefix: str, group: str, *rows: tuple[str, str]) -> dict[str, Rule]:
    return {f"{prefix}_{metric}": Rule("counter", f"{group}.{name}") for metric, name in rows}


# Figures as they stand, gauges and counters.
PLAIN: dict[str, Rule] = {
    **_gauges(
        "vllm", ("num_requests_running", "running"), ("num_requests_waiting", "waiting"),
        ("kv_cache_usage_perc", "kv_usage"), ("gpu_cache_usage_perc", "kv_usage"),
    ),
    "vllm_avg_generation_throughput_toks_per_s": Rule("gauge", "serve.gen_tok_s", 1.0, "tokens/s"),
    **_counters(
        "vllm", "serve", ("request_success", "requests_total"), ("num_preemptions", "retracted"),
        ("generation_tokens", "gen_tokens"), ("prompt_tokens", "prompt_tokens"),
        ("nixl_num_failed_transfers", "transfer_failed"),
        ("nixl_num_failed_notifications", "notification_failed"), ("nixl_num_kv_expired_reqs", "kv_expired"),
    ),
    **_gauges(
        "sglang", ("num_running_reqs", "running"), ("num_queue_reqs", "waiting"), ("token_usage", "kv_usage"),
        ("num_retracted_reqs", "retracted"),
    ),
    "sglang_gen_throughput": Rule("gauge", "serve.gen_tok_s", 1.0, "tokens/s"),
    # Its older name of the bootstrap queue was prefill_prealloc.
    "sglang_num_prefill_bootstrap_queue_reqs": Rule("gauge", "serve.bootstrap_queue", side="prefill"),
    "sglang_num_prefill_prealloc_queue_reqs": Rule("gauge", "serve.bootstrap_queue", side="prefill"),
    "sglang_num_prefill_inflight_queue_reqs": Rule("gauge", "serve.inflight_queue", side="prefill"),
    "sglang_num_decode_prealloc_queue_reqs": Rule("gauge", "serve.prealloc_queue", side="decode"),
    "sglang_num_decode_transfer_queue_reqs": Rule("gauge", "serve.transfer_queue", side="decode"),
    "sglang_kv_transfer_speed_gb_s": Rule("gauge", "serve.transfer_MBps", 1024 * MIB_PER_MB, "MB/s"),
    "sglang_kv_transfer_latency_ms": Rule("gauge", "serve.transfer_s", 1e-3, "s"),
    "sglang_kv_transfer_bootstrap_ms": Rule("gauge", "serve.bootstrap_s", 1e-3, "s"),
    "sglang_kv_transfer_alloc_ms": Rule("gauge", "serve.alloc_wait_s", 1e-3, "s"),
    "sglang_kv_transfer_total_mb": Rule("gauge", "serve.transfer_MB", MIB_PER_MB, "MB"),
    "sglang_avg_request_queue_latency": Rule("gauge", "serve.queue_s", 1.0, "s"),
    **_counters(
        "sglang", "serve", ("num_requests", "requests_total"), ("generation_tokens", "gen_tokens"),
        ("prompt_tokens", "prompt_tokens"),
        ("num_transfer_failed_reqs", "transfer_failed"), ("num_bootstrap_failed_reqs", "bootstrap_failed"),
    ),
    **_gauges("linkwise", ("unit_ready", "ready"), ("requests_queued", "unplaced")),
    **_counters("linkwise", "serve", ("unit_restarts", "restarts"), ("faults", "faults"), ("retries", "retries")),
    **_gauges(
        "trtllm", ("num_requests_running", "running"), ("num_requests_waiting", "waiting"),
        ("kv_cache_utilization", "kv_usage"),
    ),
    **_counters("trtllm", "serve", ("request_success", "requests_total")),
    **_gauges(
        "dynamo", ("frontend_inflight_requests", "running"), ("frontend_queued_requests", "waiting"),
        ("component_inflight_requests", "running"), ("component_kvstats_gpu_cache_usage_percent", "kv_usage"),
    ),
    **_counters("dynamo", "serve", ("frontend_requests", "requests_total")),
    **_counters(
        "node_netstat", "tcp", ("Tcp_RetransSegs", "retrans_segs"), ("Tcp_OutSegs", "out_segs"),
        ("Tcp_InErrs", "in_errs"), ("TcpExt_TCPTimeouts", "timeouts"), ("TcpExt_TCPSynRetrans", "syn_retrans"),
        ("TcpExt_TCPLostRetransmit", "lost_retransmit"), ("TcpExt_ListenOverflows", "listen_overflows"),
    ),
    **_counters(
        "container_cpu_cfs", "cpu", ("throttled_periods", "nr_throttled"), ("periods", "nr_periods"),
    ),
    "container_cpu_cfs_throttled_seconds": Rule("counter", "cpu.throttled_us", 1e6, "us"),
    **_counters(
        "node_infiniband", "ib", ("link_downed", "link_downed"), ("link_error_recovery", "link_error_recovery"),
        ("symbol_error", "symbol_error"), ("local_link_integrity_errors", "local_link_integrity_errors"),
        ("excessive_buffer_overrun_errors", "excessive_buffer_overrun_errors"),
        ("port_errors_received", "port_rcv_errors"), ("port_discards_received", "port_rcv_discards"),
        ("port_discards_transmitted", "port_xmit_discards"), ("port_transmit_wait", "port_xmit_wait"),
        ("port_packets_received", "port_rcv_packets"), ("port_packets_transmitted", "port_xmit_packets"),
    ),
    "node_infiniband_port_data_received_bytes": Rule("counter", "ib.port_rcv_data_bytes", 1.0, "bytes"),
    "node_infiniband_port_data_transmitted_bytes": Rule("counter", "ib.port_xmit_data_bytes", 1.0, "bytes"),
    "DCGM_FI_DEV_GPU_TEMP": Rule("gauge", "gpu.temperature_c", 1.0, "C"),
    "DCGM_FI_DEV_MEMORY_TEMP": Rule("gauge", "gpu.memory_temperature_c", 1.0, "C"),
    "DCGM_FI_DEV_POWER_USAGE": Rule("gauge", "gpu.power_w", 1.0, "W"),
    "DCGM_FI_DEV_GPU_UTIL": Rule("gauge", "gpu.utilization_pct", 1.0, "%"),
    "DCGM_FI_DEV_SM_CLOCK": Rule("gauge", "gpu.sm_clock_mhz", 1.0, "MHz"),
    "DCGM_FI_DEV_FB_USED": Rule("gauge", "gpu.memory_used_bytes", 2.0**20, "bytes"),
    **_counters(
        "DCGM_FI_DEV", "gpu", ("PCIE_REPLAY_COUNTER", "pcie_replay"), ("POWER_VIOLATION", "power_violation_us"),
        ("THERMAL_VIOLATION", "thermal_violation_us"), ("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "nvlink_crc_flit"),
        ("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "nvlink_crc_data"), ("NVLINK_REPLAY_ERROR_COUNT_TOTAL", "nvlink_replay"),
        ("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "nvlink_recovery"),
    ),
    "XPU_TIMER_COMMON_HANG": Rule("gauge", "rank.hang"),
    "XPU_TIMER_MM_KERNEL_AVG_LATENCY": Rule("gauge", "rank.matmul_latency_us", 1.0, "us"),
    "XPU_TIMER_MM_KERNEL_P99_LATENCY": Rule("gauge", "rank.matmul_latency_p99_us", 1.0, "us"),
    "XPU_TIMER_COLL_KERNEL_AVG_LATENCY": Rule("gauge", "rank.coll_latency_us", 1.0, "us"),
    "XPU_TIMER_COLL_KERNEL_P99_LATENCY": Rule("gauge", "rank.coll_latency_p99_us", 1.0, "us"),
    "XPU_TIMER_COLL_KERNEL_BANDWIDTH": Rule("gauge", "rank.coll_GBps", 1.0, "GB/s"),
    **_counters("XPU_TIMER_COMMON", "rank", ("GC_COUNT", "gc_count"), ("DATA_LOADER_COUNT", "data_loader_count")),
}  # fmt: skip

# Histograms and summaries, of which the mean is kept.
MEANS: dict[str, Rule] = {
    **_seconds(
        "vllm", ("time_to_first_token_seconds", "ttft_s"), ("inter_token_latency_seconds", "itl_s"),
        ("time_per_output_token_seconds", "itl_s"), ("request_queue_time_seconds", "queue_s"),
        ("request_prefill_time_seconds", "prefill_s"), ("request_decode_time_seconds", "decode_s"),
        ("nixl_xfer_time_seconds", "transfer_s"), ("nixl_post_time_seconds", "transfer_post_s"),
    ),
    "vllm_nixl_bytes_transferred": Rule("gauge", "serve.transfer_MB", 1e-6, "MB"),
    "vllm_nixl_num_descriptors": Rule("gauge", "serve.transfer_entries"),
    **_seconds(
        "sglang", ("time_to_first_token_seconds", "ttft_s"), ("inter_token_latency_seconds", "itl_s"),
        ("time_per_output_token_seconds", "itl_s"), ("queue_time_seconds", "queue_s"), ("queue_time_s", "queue_s"),
    ),
    **{name: PLAIN[name] for name in PLAIN if name.startswith("sglang_kv_transfer_")},  # histograms in newer ones
    **_seconds(
        "trtllm", ("time_to_first_token_seconds", "ttft_s"), ("time_per_output_token_seconds", "itl_s"),
        ("request_queue_time_seconds", "queue_s"),
    ),
    **_seconds(
        "dynamo_frontend", ("time_to_first_token_seconds", "ttft_s"), ("inter_token_latency_seconds", "itl_s"),
    ),
}  # fmt: skip

# Metrics whose label says which figure they are: metric -> label, value of the label -> rule.
BY_LABEL: dict[str, tuple[str, dict[str, Rule]]] = {
    "sglang_per_stage_req_latency_seconds": (
        "stage",
        {
            "prefill_forward": Rule("gauge", "serve.prefill_s", 1.0, "s"),
            "prefill_transfer_kv_cache": Rule("gauge", "serve.transfer_s", 1.0, "s"),
            "decode_transferred": Rule("gauge", "serve.transfer_s", 1.0, "s"),
        },
    ),
    "nv_trt_llm_request_metrics": (
        "request_type",
        {"scheduled": Rule("gauge", "serve.running"), "waiting": Rule("gauge", "serve.waiting")},
    ),
    "nv_trt_llm_kv_cache_block_metrics": (
        "kv_cache_block_type",
        {"fraction": Rule("gauge", "serve.kv_usage"), "free": Rule("gauge", "serve.kv_free_blocks")},
    ),
}

# Faults of devices: metrics that are more than a figure.
XID = "DCGM_FI_DEV_XID_ERRORS"
THROTTLE = frozenset({"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"})
UNCORRECTED = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
REMAP_FAILED = "DCGM_FI_DEV_ROW_REMAP_FAILURE"
PORT_STATE = "node_infiniband_state_id"  # 1 down, 4 active
FAULTS = frozenset({XID, UNCORRECTED, REMAP_FAILED, PORT_STATE, *THROTTLE})
# Bits of nvml.h's nvmlClocksEventReason* that are no choice and no idleness.
REASONS = {
    0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost", 0x20: "sw_thermal", 0x40: "hw_thermal",
    0x80: "hw_power_brake",
}  # fmt: skip

# Labels that tell of a figure's part or of where it was collected, and not of whose it is.
PARTS = frozenset({
    "le", "quantile", "engine_type", "finished_reason", "reason", "stage", "request_type", "kv_cache_block_type",
    "priority", "endpoint", "status", "job", "job_name", "pod_name", "ip", "rank", "local_rank", "pci_bus_id", "gpu",
    "device", "port", "UUID", "modelName", "DCGM_FI_DRIVER_VERSION", "Hostname", "hostname", "host", "node", "nodename",
})  # fmt: skip
HOSTS = ("Hostname", "hostname", "nodename", "node", "host", "ip")
