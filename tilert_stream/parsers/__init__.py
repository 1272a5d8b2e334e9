"""What a model writes besides plain text, read out of it: reasoning, and calls of tools."""
