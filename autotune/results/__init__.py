"""What tuning returns, and the ways to look at it: tables, explanations, differences, files."""
