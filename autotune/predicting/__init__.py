"""What is known of a configuration before it is compiled: what it does, whether it can work, and how fast it may be."""
