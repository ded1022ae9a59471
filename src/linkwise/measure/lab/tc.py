"""Shaping: a token bucket (tbf) at each end of a cable holds that direction to its bandwidth.

tbf and not netem, which many kernels leave out: what is wanted is a bandwidth, and latency is what the machine has.
"""

# Queue of one direction. More than all windows of the flows that may meet on it, so that nothing is ever dropped and
# sent again: see WINDOW in netns.py.
QUEUE_BYTES = 64 * 2**20
BURST_S = 0.002  # how late the kernel may be without losing bandwidth
FRAME_BYTES = 9014  # MTU 9000 and the Ethernet header, which is what an interface counts


def tbf(interface: str, rate_Bps: float) -> str:
    """The line of `tc -batch` that holds what an interface sends to a rate in bytes/s."""
    burst = max(4 * FRAME_BYTES, round(rate_Bps * BURST_S))
    return f"qdisc add dev {interface} root tbf rate {round(rate_Bps * 8)}bit burst {burst} limit {QUEUE_BYTES}"
