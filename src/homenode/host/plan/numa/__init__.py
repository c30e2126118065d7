"""Plans of engines that span several NUMA nodes: the policy, the teams of threads, and what each would reach. Pure."""
