"""The rooms that hold text: files into pairs, lines into ids, pairs into batches."""
