"""What commands share: options, talking to a person, figures, picture files, run folders."""
