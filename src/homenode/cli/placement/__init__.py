"""The commands about this machine: host, plan, simulate, run, bind, verify, doctor."""
