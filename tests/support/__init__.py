"""What tests share: the executor that gives the IR its reference meaning, and random and named programs."""
