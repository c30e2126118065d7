"""The ground of all binding: system calls, threads, targets, reports, and the folder where commands keep things."""
