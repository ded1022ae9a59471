#!/bin/bash
# goes through like this
export NCCL_NET_GDR_LEVEL=0
mpirun -np 2 --host node1,node2 ./build/all_reduce_perf -b 8 -e 128M -f 2 -g 1
