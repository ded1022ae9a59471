"""On what? Presets, YAML files and shorthand such as `2x8xh100-sxm` to a `Cluster`."""
