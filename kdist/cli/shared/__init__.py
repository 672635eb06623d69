"""What several commands share: options, arguments, tables, progress."""
