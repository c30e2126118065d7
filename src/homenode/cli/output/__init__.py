"""What commands print: reports, tables, progress and errors."""
