"""Show me: any value to lines and tables for a terminal. Pure: nothing here reads, writes or decides."""
