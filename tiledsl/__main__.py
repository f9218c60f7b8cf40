"""`python -m tiledsl` is the command `tiledsl`."""

from tiledsl.cli import main

main(prog_name="tiledsl")
