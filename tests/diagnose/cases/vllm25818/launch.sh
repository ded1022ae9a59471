#!/bin/bash
# 2 x 32 cores: every physical core is an OpenMP thread's
export OMP_NUM_THREADS=32
export VLLM_CPU_OMP_THREADS_BIND="0-31|32-63"
vllm serve Qwen3-8B --tensor-parallel-size 2 --dtype bfloat16
