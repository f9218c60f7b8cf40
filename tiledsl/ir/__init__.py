"""The IR: values, operations with regions, types, a text form, a rewriter and a pass manager."""
