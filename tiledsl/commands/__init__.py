"""What the command line does: one module a command. The options are in tiledsl.cli."""
