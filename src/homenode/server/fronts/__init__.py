"""Several front processes on one port, and the coordinator that starts and watches them and the engines."""
