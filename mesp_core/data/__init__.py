"""From a .jsonl file to batches: rows, chat templates, tokenising, loss masks, batches."""
