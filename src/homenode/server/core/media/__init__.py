"""Pictures and other media of messages: what parts are, their bytes, and the prompts that have them."""
