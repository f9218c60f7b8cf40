"""From the source text of a function to the tile IR: grammar, parser, syntax tree, elaborator."""
