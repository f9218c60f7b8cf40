"""What is known of a configuration before it is compiled: what it does, whether it can work, how fast it may be."""
