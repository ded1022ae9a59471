"""The plan's groups as real process groups: start, groups, what they did, and who does not answer.

Nothing here decides a layout or a placement; nothing waits without a time limit, and nothing listens beyond the address
that the ranks were told to meet at (127.0.0.1 for ranks started here).
"""
