"""What is served? From a config.json, safetensors headers or the catalogue to a `Model`."""
