"""What every layer shares: numbers that explain themselves, errors, bounded file reading, schema versions."""
