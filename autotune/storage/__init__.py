"""What is remembered on disk: keys, trials as they end, results and artifacts; read back with suspicion."""
