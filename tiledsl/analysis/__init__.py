"""What passes ask about the IR, changing nothing: ranges, forms of indices, block accesses, loops of products."""
