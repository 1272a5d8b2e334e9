"""The text side of a served model: its names, tokenizer, chat template, and bytes of tokens."""
