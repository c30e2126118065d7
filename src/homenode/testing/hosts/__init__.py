"""Made-up hosts, read by the same code as a live machine. They need the placement toolkit and nothing else."""
