"""Which device takes which rank? The cost of a placement, the least it can be, and the ways to look for a good one."""
