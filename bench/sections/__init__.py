"""One module per section of the table. Each has the peers that take part, and yields its rows and curves."""
