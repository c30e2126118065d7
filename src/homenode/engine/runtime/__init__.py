"""One engine put together and run: its parts are built, and a loop joins front, scheduler and executor."""
