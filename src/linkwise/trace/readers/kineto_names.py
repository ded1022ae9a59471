"""What names in PyTorch profiler traces mean: collectives, data types, kinds of kernels and operators.

Facts: pytorch/pytorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp and ProcessGroupGloo.cpp (names of collectives),
c10/core/ScalarType.h and c10/util/typeid.cpp (names of types), NVIDIA/nccl src/device/generate.py (names of kernels).
"""

import re

OTHER, MATMUL, ATTENTION, MEMCPY = range(4)
ROLES = ("other", "matmul", "attention", "memcpy")

_OPS = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce",
    "allgather": "all_gather", "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all", "all_to_allv": "all_to_all", "alltoallv": "all_to_all",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter",
    "send": "send", "recv": "recv", "recv_any_source": "recv", "recvanysource": "recv",
    "barrier": "barrier", "monitored_barrier": "barrier", "sendrecv": "send_recv",
}  # fmt: skip
_ENDS = re.compile(r"(?:_into_tensor|_tensor|_coalesced|_oop|_sparse|_base)+\Z")
# What `record_param_comms` also tells of, and moves nothing.
NO_CALLS = frozenset({"wait", "init", "startcoalescing", "endcoalescing", "start_coalescing", "end_coalescing"})

# Type name -> ours and bytes of one element: ScalarType's names, C++ type names, NCCL's names in kernels.
_TYPES: dict[str, tuple[str, int]] = {}
for _ours, _size, _theirs in (
    ("float32", 4, "float f32"),
    ("float64", 8, "double f64"),
    ("float16", 2, "half f16"),
    ("bfloat16", 2, "bfloat16 bf16 __nv_bfloat16 hip_bfloat16"),
    ("int64", 8, "long i64 int64_t long_int"),
    ("int32", 4, "int i32 int32_t"),
    ("int16", 2, "short int16_t"),
    ("int8", 1, "char i8 int8_t signed_char"),
    ("uint8", 1, "byte u8 uint8_t unsigned_char"),
    ("uint32", 4, "u32 uint32_t"),
    ("uint64", 8, "u64 uint64_t"),
    ("bool", 1, "bool"),
    ("complex64", 8, "complexfloat"),
    ("float8_e4m3fn", 1, "float8_e4m3fn f8e4m3"),
    ("float8_e5m2", 1, "float8_e5m2 f8e5m2"),
    ("float8_e4m3fnuz", 1, "float8_e4m3fnuz"),
    ("float8_e5m2fnuz", 1, "float8_e5m2fnuz"),
):
    _TYPES |= dict.fromkeys(_theirs.split(), (_ours, _size))

_KERNEL_OP = re.compile(r"AllReduce|AllGather|ReduceScatter|All[tT]oAll|SendRecv|Broadcast|Reduce|Gather|Scatter")
_KERNEL_TYPE = re.compile(
    r"(?:MinMax|PreMulSum|SumPostDiv|Sum|Prod|Max|Min|Avg)_(\w+?)(?:_(?:RING|TREE|COLLNET|NVLS|PAT)|\(|\Z)",
    re.IGNORECASE,
)
# Kernels of engines that are collectives without NCCL: vLLM's, SGLang's and aiter's cross_device_reduce, FlashInfer's
# and TensorRT-LLM's allreduce_fusion and twoshot, torch's symmetric memory, DeepEP. A rank waits in them for others.
_CUSTOM = (
    (
        re.compile(r"cross_device_reduce|(?<![a-zA-Z])all_?reduce|All_?[Rr]educe|multimem_\w{0,40}reduce"),
        "all_reduce",
        "",
    ),
    (re.compile(r"(?<![a-zA-Z])reduce_?scatter|Reduce_?Scatter"), "reduce_scatter", ""),
    (re.compile(r"(?<![a-zA-Z])all_?gather|All_?[Gg]ather"), "all_gather", ""),
    (re.compile(r"(?:deep_ep|internode|intranode)[\w:]{0,40}dispatch"), "all_to_all", "dispatch"),
    (re.compile(r"(?:deep_ep|internode|intranode)[\w:]{0,40}combine"), "all_to_all", "combine"),
    (re.compile(r"(?<![a-zA-Z])all_?to_?all|All[Tt]o[Aa]ll"), "all_to_all", ""),
)
_ATTENTION = re.compile(r"attention|attn|fmha|flash|paged_?att|\bmla|_mla", re.IGNORECASE)
_MATMUL = re.compile(
    r"gemm|gemv|matmul|cutlass|cublas|Cijk_|nvjet|splitK|wgmma|marlin|fused_moe|aten::(?:mm|bmm|addmm|baddbmm|linear|conv)"
    r"|\bmm_kernel|conv\d?d?_|implicit_con|xmma",
    re.IGNORECASE,
)
_COPY = re.compile(r"memcpy|memset|aten::(?:copy_|to|_to_copy|clone|contiguous)\Z", re.IGNORECASE)
_STEP = re.compile(r"(ProfilerStep#)(\d{1,12})\Z|(step)\[|(execute)_")


def op(name: str) -> str:
    """Our name of a collective as c10d, NCCL or gloo call it; lower snake case of others, at most 60 characters."""
    plain = _ENDS.sub("", name.lower().removeprefix("c10d::").strip("_"))
    return _OPS.get(plain) or re.sub(r"\W+", "_", plain)[:60].strip("_") or "collective"


def dtype(name: str) -> tuple[str, int]:
    """torch's name of a type and its bytes, from any of the names traces use; "" and 0 for others."""
    plain = name.lower().removeprefix("c10::").replace(" ", "_")
    return _TYPES.get(plain) or _TYPES.get(plain.strip("_")) or ("", 0)


def kernel_call(name: str) -> tuple[str, str, str] | None:
    """Op, dtype and role of a kernel that is a collective; None for others. NCCL moves bytes as int8 where it does not
    reduce, so that only a reduction's name says the dtype."""
    if "nccl" in name or "NCCL" in name:
        found = _KERNEL_OP.search(name)
        if found is None:
            return "collective", "", ""
        kind = op(found[0])
        reduced = _KERNEL_TYPE.search(name) if "reduce" in kind else None
        return kind, dtype(reduced[1])[0] if reduced else "", ""
    for pattern, kind, role in _CUSTOM:
        if pattern.search(name):
            return kind, "", role
    return None


def work(name: str) -> int:
    """The kind of a kernel's or an operator's work: OTHER, MATMUL, ATTENTION or MEMCPY."""
    if _ATTENTION.search(name):
        return ATTENTION
    if _MATMUL.search(name):
        return MATMUL
    return MEMCPY if _COPY.search(name) else OTHER


def step(name: str) -> tuple[int, int] | None:
    """How well an annotation names a step (more is better), and its number, -1 = none; None: it names no step.

    torch.profiler writes ProfilerStep#N; SGLang step[DECODE bs=32]; vLLM execute_32_context_0(...)...
    """
    found = _STEP.match(name)
    if found is None:
        return None
    return (3, int(found[2])) if found[1] else (2, -1) if found[3] else (1, -1)
