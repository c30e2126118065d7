"""What keeps an engine from starting as it is asked for: calls that the kernel lacks, networks that cannot be. Pure."""
