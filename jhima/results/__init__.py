"""What a run shows: tables, figures, the HTML report."""
