"""The sources that a `Host` comes from: this machine, a recording of another one, or a description in one line."""
