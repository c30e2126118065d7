"""Memory of a process: the policy for what it takes, the pages it has, and the nodes on which they lie."""
