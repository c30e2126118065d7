"""The commands of `homenode models`, in `group`, and what they and `serve` tell of a model before it is fetched."""
