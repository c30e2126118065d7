"""Several models as `--models` names them: their settings, their sizes and their places on a host."""
