"""One choice of an answer: its text as it comes, the message that it is read as, and its grammar."""
