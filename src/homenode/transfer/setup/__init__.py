"""What handing KV over needs to be told, and whether it goes together: settings, checks, what is published."""
