"""Stand-ins for what a test has not: `hosts` makes up machines from a line, `scripted_executor` computes nothing."""
