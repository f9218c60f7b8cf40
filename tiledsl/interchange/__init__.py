"""Programs as text that other MLIR tools read and write: the generic form.

`printer.print_generic` writes it, `parser.GenericParser` reads it back, `parser.read_program` takes it or the text form
of tiledsl.ir.printer. An operation of MLIR's own dialects stands under its name only where it has the types, the
attributes, the regions and the meaning that MLIR gives it (`standard.py`). All others are of dialects that MLIR does
not know (`--allow-unregistered-dialect`): tile, triton, gluon and thread.
"""
