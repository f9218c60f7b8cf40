"""vectorize-parallel, with the passes around it: what programs mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.ir_cases import TO_VALUES, to_values
from tests.passes.parallel_bodies import tiles
from tests.support.programs import check_pass, inputs_for, programs
from tiledsl.dialects.tile import FuncOp

BODIES = {
    # One element, changed by several points
    "updates": """PAR { %x = tile.load %a[%i, %j] : float32 %y = tile.load %v[%i] : float32
                    %z = arith.add %x, %y : float32 tile.store %z, %v[%i] }""",
    "updates_of_one": """PAR { %x = tile.load %a[%i, %j] : float32 %y = tile.load %v[%c2] : float32
                    %z = arith.max %x, %y : float32 tile.store %z, %v[%c2] }""",
    "updates_of_the_same": """PAR { %y = tile.load %v[%i] : float32 %z = arith.add %y, %c0.5 : float32
                    tile.store %z, %v[%i] }""",
    "updates_of_nothing": "PAR { %y = tile.load %v[%c2] : float32 tile.store %y, %v[%c2] }",
    "updates_of_groups": """PAR { %k = arith.floordiv %j, %c2 : int32 %x = tile.load %a[%i, %j] : float32
                    %y = tile.load %v[%k] : float32 %z = arith.sub %y, %x : float32 tile.store %z, %v[%k] }""",
    "updates_of_classes": """PAR { %h = arith.floordiv %j, %c3 : int32 %k = arith.min %h, %c1 : int32
                    %x = tile.load %a[%i, %j] : float32 %y = tile.load %b[%i, %k] : float32
                    %z = arith.add %y, %x : float32 tile.store %z, %b[%i, %k] }
                  PAR { %x = tile.load %b[%i, %j] : float32 tile.store %x, %a[%i, %j] }""",
    "updates_where_an_index_says": """PAR { %n = tile.load %I[%i, %j] : int32 %k = arith.floormod %n, %c4 : int32
                    %x = tile.load %a[%i, %j] : float32 %y = tile.load %v[%k] : float32
                    %z = arith.min %x, %y : float32 tile.store %z, %v[%k] }""",
    "updates_under_a_condition": """PAR { %c = arith.cmp %j, %i {predicate = "gt"} : bool scf.if %c {
                    %x = tile.load %a[%i, %j] : float32 %y = tile.load %w[%i] : float32 %z = arith.add %x, %y : float32
                    %q = arith.add %z, %c0.5 : float32 tile.store %q, %w[%i] scf.yield } { scf.yield }
                  } PAR { %x = tile.load %w[%j] : float32 tile.store %x, %a[%i, %j] }""",
    "updates_of_several_kinds_apart": """PAR { %y = tile.load %a[%i, %j] : float32 %z = arith.add %y, %y : float32
                    tile.store %z, %a[%i, %j] %u = tile.load %a[%i, %j] : float32 %o = arith.max %u, %c0.5 : float32
                    tile.store %o, %a[%i, %j] }""",
    # Axes taken apart
    "blocks_of_a_diagonal": """tile.parallel {extents = (4, 8)} (%i: int32, %j: int32) {
                    %p = arith.floordiv %i, %c2 : int32 %q = arith.floordiv %j, %c4 : int32
                    %c = arith.cmp %p, %q {predicate = "eq"} : bool scf.if %c {
                    %r = arith.floormod %i, %c2 : int32 %s1 = arith.floormod %j, %c4 : int32
                    %t = arith.mul %p, %c2 : int32 %k = arith.add %t, %r : int32 %x = tile.load %b[%i, %j] : float32
                    tile.store %x, %a[%k, %s1] scf.yield } { scf.yield } }""",
    "transposed_read": "PAR { %x = tile.load %A[%i, %j] : float32 tile.store %x, %a[%i, %j] }",
    "broadcast_row": "PAR { %x = tile.load %w[%j] : float32 tile.store %x, %a[%i, %j] }",
    "broadcast_column": "PAR { %x = tile.load %v[%i] : float32 tile.store %x, %a[%i, %j] }",
    "scalar": "PAR { tile.store %c2.0, %a[%i, %j] }",
    "constant_element": "PAR { %x = tile.load %b[%c2, %c3] : float32 tile.store %x, %a[%i, %j] }",
    "dynamic_element": "PAR { %x = tile.load %v[%bx] : float32 tile.store %x, %a[%i, %j] }",
    "row_of_block": "PAR { %x = tile.load %b[%bx, %j] : float32 tile.store %x, %a[%i, %j] }",
    "shifted": """PAR { %j2 = arith.floordiv %j, %c2 : int32 %x = tile.load %w[%j2] : float32
                        tile.store %x, %a[%i, %j] }""",
    "slice_read": """tile.parallel {extents = (4, 4)} (%i: int32, %j: int32) {
                       %k = arith.add %j, %c4 : int32 %x = tile.load %b[%i, %k] : float32
                       tile.store %x, %a[%i, %j] }""",
    "odd_slice_read": """tile.parallel {extents = (4, 5)} (%i: int32, %j: int32) {
                       %k = arith.add %j, %c3 : int32 %x = tile.load %b[%i, %k] : float32
                       tile.store %x, %a[%i, %j] }""",
    "slice_write": """tile.parallel {extents = (4, 4)} (%i: int32, %j: int32) { %k = arith.add %j, %c4 : int32
                       %x = tile.load %b[%i, %j] : float32 tile.store %x, %a[%i, %k] }""",
    "odd_slice_write": """tile.parallel {extents = (3, 5)} (%i: int32, %j: int32) { %k = arith.add %j, %c2 : int32
                       %x = tile.load %w[%j] : float32 %r = arith.add %i, %bx : int32 tile.store %x, %a[%r, %k] }""",
    "gather": """PAR { %n = tile.load %I[%i, %j] : int32 %k = arith.floormod %n, %c8 : int32
                       %x = tile.load %b[%i, %k] : float32 tile.store %x, %a[%i, %j] }""",
    "gather_vector": """PAR { %n = tile.load %I[%i, %j] : int32 %k = arith.floormod %n, %c8 : int32
                       %x = tile.load %w[%k] : float32 tile.store %x, %a[%i, %j] }""",
    "gather_both": """PAR { %n = tile.load %I[%i, %j] : int32 %k = arith.floormod %n, %c8 : int32
                       %m = arith.floormod %n, %c4 : int32
                       %x = tile.load %b[%m, %k] : float32 tile.store %x, %a[%i, %j] }""",
    "gather_rows": """PAR { %n = tile.load %I[%i, %c0] : int32 %k = arith.floormod %n, %c4 : int32
                       %x = tile.load %b[%k, %j] : float32 tile.store %x, %a[%i, %j] }""",
    "diagonal": """tile.parallel {extents = (4,)} (%i: int32) { %x = tile.load %b[%i, %i] : float32
                       tile.store %x, %v[%i] }""",
    "store_diagonal": "tile.parallel {extents = (4,)} (%i: int32) { tile.store %c9.0, %a[%i, %i] }",
    "store_row": "tile.parallel {extents = (8,)} (%j: int32) { tile.store %c7.0, %a[%bx, %j] }",
    "store_column": """tile.parallel {extents = (4,)} (%i: int32) { %x = tile.load %v[%i] : float32
                       tile.store %x, %a[%i, %c5] }""",
    "store_reversed": """PAR { %r = arith.sub %c3, %i : int32 %k = arith.sub %c7, %j : int32
                       %x = tile.load %A[%i, %j] : float32
                       tile.store %x, %a[%r, %k] }""",
    "store_permuted": """tile.parallel {extents = (8, 4)} (%j: int32, %i: int32) { %x = tile.load %I[%i, %j] : int32
                       %y = arith.cast %x : float32 tile.store %y, %a[%i, %j] }""",
    "store_computed": """tile.parallel {extents = (4,)} (%i: int32) { %n = tile.load %I[%i, %c1] : int32
                       %k = arith.floormod %n, %c8 : int32 tile.store %c3.0, %a[%i, %k] }""",
    "scatter": """tile.parallel {extents = (8,)} (%j: int32) { %k = arith.floordiv %j, %c2 : int32
                       %x = tile.load %w[%k] : float32 tile.store %x, %v[%k] }""",
    "masked": """PAR { %c = arith.cmp %i, %j {predicate = "lt"} : bool scf.if %c {
                       tile.store %c1.0, %a[%i, %j] scf.yield } { tile.store %c2.0, %a[%i, %j] scf.yield } }""",
    "masked_column": """PAR { %c = arith.cmp %i, %c2 {predicate = "ge"} : bool scf.if %c {
                       %d = arith.cmp %j, %c5 {predicate = "ge"} : bool
                       scf.if %d { tile.store %c1.0, %a[%i, %j] scf.yield }
                       { scf.yield } scf.yield } { scf.yield } }""",
    "uniform_if": """PAR { %c = arith.cmp %bx, %c1 {predicate = "lt"} : bool scf.if %c {
                       tile.store %c1.0, %a[%i, %j] scf.yield } { tile.store %c2.0, %a[%i, %j] scf.yield } }""",
    "if_result": """PAR { %c = arith.cmp %bx, %i {predicate = "lt"} : bool %x = scf.if %c : float32 {
                       %y = tile.load %w[%j] : float32 scf.yield [%y] } { scf.yield [%c2.0] }
                       tile.store %x, %a[%i, %j] }""",
    "uniform_if_result": """PAR { %c = arith.cmp %bx, %c1 {predicate = "lt"} : bool %x = scf.if %c : float32 {
                       %y = tile.load %w[%j] : float32 scf.yield [%y] } { scf.yield [%c2.0] }
                       tile.store %x, %a[%i, %j] }""",
    "serial": """PAR { tile.store %c0.0, %a[%i, %j] scf.for %c0, %c4, %c1 (%k: int32) {
                       %x = tile.load %A[%k, %j] : float32
                       %y = tile.load %a[%i, %j] : float32 %z = arith.add %x, %y : float32
                       tile.store %z, %a[%i, %j] scf.yield } }""",
    "serial_of_point": """PAR { tile.store %c0.0, %a[%i, %j] scf.for %i, %j, %c1 (%k: int32) {
                       %x = tile.load %A[%i, %k] : float32 %y = tile.load %a[%i, %j] : float32
                       %z = arith.add %x, %y : float32 tile.store %z, %a[%i, %j] scf.yield } }""",
    "downwards": """PAR { tile.store %c0.0, %a[%i, %j] scf.for %c7, %j, %c-2 (%k: int32) {
                       %x = tile.load %A[%i, %k] : float32 %y = tile.load %a[%i, %j] : float32
                       %z = arith.add %x, %y : float32 tile.store %z, %a[%i, %j] scf.yield } }""",
    "carried": """PAR { %r = scf.for %c0, %j, %c1[%c0.0] : float32 (%k: int32, %s: float32) {
                       %x = tile.load %A[%i, %k] : float32 %z = arith.add %x, %s : float32 scf.yield [%z] }
                       tile.store %r, %a[%i, %j] }""",
    "local": """%t = tile.alloc : buffer<float32, local> PAR { %x = tile.load %A[%i, %j] : float32
                       tile.store %x, %t %c = arith.cmp %x, %c0.0 {predicate = "lt"} : bool
                       scf.if %c { tile.store %c0.0, %t scf.yield } { scf.yield }
                       %y = tile.load %t : float32 tile.store %y, %a[%i, %j] }""",
    "local_column": """%t = tile.alloc : buffer<1*float32, local> PAR { %x = tile.load %A[%i, %c2] : float32
                       tile.store %x, %t[%c0] %y = tile.load %t[%c0] : float32 tile.store %y, %a[%i, %j] }""",
    "local_as_scalar": """%t = tile.alloc : buffer<float32, local> PAR { %x = tile.load %b[%i, %j] : float32
        tile.write %x, %t %y = tile.read %t : float32 %z = arith.add %y, %y : float32 tile.store %z, %a[%i, %j] }""",
    "sum_of_two": """tile.parallel {extents = (2,)} (%k: int32) { %x = tile.load %w[%k] : float32
        %y = tile.load %v[%c1] : float32 %z = arith.add %y, %x : float32 tile.store %z, %v[%c1] }""",
    "tile_of_a_scalar": """PAR { %x = tile.load %A[%c1, %c2] : float32 %t = tensor.broadcast %x : tensor<8xfloat32>
        tile.write %t, %w } PAR { %x = tile.load %w[%j] : float32 tile.store %x, %a[%i, %j] }""",
    "local_inside_uniform": """PAR { %t = tile.alloc : buffer<2*float32, local> tile.store %c0.5, %t[%c1]
        tile.store %c1.5, %t[%c0] %x = tile.load %t[%c1] : float32 %y = tile.load %t[%c0] : float32
        %z = arith.sub %y, %x : float32 tile.store %z, %a[%i, %j] }""",
    "local_inside_doubled": """PAR { %t = tile.alloc : buffer<1*float32, local> tile.fill %c1.5, %t
        %x = tile.load %t[%c0] : float32 %y = arith.mul %x, %x : float32 tile.store %y, %t[%c0]
        %z = tile.load %t[%c0] : float32 tile.store %z, %a[%i, %j] }""",
    "local_inside": """PAR { %t = tile.alloc : buffer<2*float32, local> %x = tile.load %A[%i, %j] : float32
                       tile.store %x, %t[%c0] tile.store %c4.0, %t[%c1]
                       %y = tile.load %t[%c0] : float32 %z = tile.load %t[%c1] : float32
                       %s = arith.add %y, %z : float32 tile.store %s, %a[%i, %j] }""",
    "local_filled": """PAR { %t = tile.alloc : buffer<2*float32, local> tile.fill %c1.0, %t
                       %x = tile.load %A[%i, %j] : float32 tile.store %x, %t[%c0]
                       %y = tile.load %t[%c0] : float32 %z = tile.load %t[%c1] : float32
                       %s = arith.add %y, %z : float32 tile.store %s, %a[%i, %j] }""",
    "local_uniform": """%t = tile.alloc : buffer<int32, local> PAR { tile.store %bx, %t %x = tile.load %t : int32
                       %y = arith.cast %x : float32 tile.store %y, %a[%i, %j] }
                       %after = tile.load %t : int32 %z = arith.cast %after : float32 tile.store %z, %v[%c2]""",
    "local_as_tile": """%t = tile.alloc : buffer<8*float32, local>
                       tile.parallel {extents = (8,)} (%j: int32) { %x = tile.load %w[%j] : float32
                       tile.store %x, %t[%j] }
                       PAR { %x = tile.load %t[%j] : float32 tile.store %x, %a[%i, %j] }""",
    "while_of_point": """%t = tile.alloc : buffer<int32, local> PAR { tile.store %j, %t scf.while {
                       %x = tile.load %t : int32 %c = arith.cmp %x, %i {predicate = "gt"} : bool scf.condition %c } {
                       %x = tile.load %t : int32 %y = arith.sub %x, %c2 : int32 tile.store %y, %t scf.yield }
                       %x = tile.load %t : int32 %y = arith.cast %x : float32 tile.store %y, %a[%i, %j] }""",
    "nested": """tile.parallel {extents = (4,)} (%i: int32) { %x = tile.load %v[%i] : float32
                       tile.parallel {extents = (8,)} (%j: int32) { %y = tile.load %w[%j] : float32
                       %z = arith.mul %x, %y : float32 tile.store %z, %a[%i, %j] } tile.store %x, %v[%i]
                       tile.parallel {extents = (2,)} (%j: int32) { tile.store %c0.5, %a[%i, %j] } }""",
    "one_writer": """PAR { %c = arith.cmp %j, %c3 {predicate = "eq"} : bool %x = tile.load %b[%i, %j] : float32
                       scf.if %c { tile.store %x, %v[%i] scf.yield } { scf.yield } }""",
    "any_writer": """PAR { %x = tile.load %b[%i, %j] : float32 %c = arith.cmp %x, %c0.0 {predicate = "gt"} : bool
                       scf.if %c { tile.store %c5.0, %v[%i] scf.yield } { scf.yield } }""",
    "one_element": """PAR { %s = arith.add %i, %j : int32 %c = arith.cmp %s, %c10 {predicate = "eq"} : bool
                       %x = tile.load %b[%i, %j] : float32
                       scf.if %c { tile.store %x, %v[%c1] scf.yield } { scf.yield } }""",
    "global_one_writer": """PAR { %c = arith.cmp %j, %c3 {predicate = "eq"} : bool %x = tile.load %b[%i, %j] : float32
                       scf.if %c { tile.store %x, %W[%i, %c0] scf.yield } { scf.yield } }""",
    "atomics": """PAR { %x = tile.load %b[%i, %j] : float32
                       %o = tile.atomic %x, %W[%c0, %i] {kind = "add"} : float32
                       %p = tile.atomic %c1.0, %W[%c1, %c0] {kind = "add"} : float32
                       %c = arith.cmp %x, %c0.0 {predicate = "gt"} : bool scf.if %c {
                       %r = tile.atomic %c1.0, %W[%c1, %c1] {kind = "add"} : float32
                       %q = tile.atomic %x, %W[%c2, %i] {kind = "max"} : float32
                       %n = tile.atomic %x, %W[%c3, %i] {kind = "min"} : float32 scf.yield } { scf.yield } }""",
    "atomics_on_chip": """PAR { %x = tile.load %b[%i, %j] : float32 %c = arith.cmp %j, %c3 {predicate = "lt"} : bool
                       %o = tile.atomic %c1.0, %v[%c0] {kind = "add"} : float32
                       scf.if %c { %p = tile.atomic %c1.0, %v[%c1] {kind = "add"} : float32
                         %q = tile.atomic %x, %w[%j] {kind = "min"} : float32 scf.yield } { scf.yield } }
                       tile.parallel {extents = (4, 8)} (%i: int32, %j: int32) {
                       %x = tile.load %w[%j] : float32 tile.store %x, %a[%i, %j] }""",
    "old_values_outside_of_one_row": """%u = tile.alloc : buffer<1*8*float32, fragment>
                       tile.copy %A[%c2, %c0], %u {shape = (1, 8), source_axes = (0, 1), target_axes = (0, 1)}
                       PAR { %x = tile.load %b[%i, %j] : float32 %k = arith.sub %i, %c1 : int32
                       %o = tile.atomic %x, %u[%k, %j] {kind = "add"} : float32 tile.store %o, %a[%i, %j] }""",
    "whole_numbers_under_a_condition": """%n = tile.alloc : buffer<4*int32, fragment> tile.fill %c3, %n
                       PAR { %x = tile.load %I[%i, %j] : int32 %k = arith.add %j, %bx : int32
                       %c = arith.cmp %k, %c4 {predicate = "lt"} : bool scf.if %c {
                       %o = tile.atomic %x, %n[%k] {kind = "add"} : int32 scf.yield } { scf.yield } }
                       tile.parallel {extents = (4,)} (%i: int32) { %y = tile.load %n[%i] : int32
                       %z = arith.cast %y : float32 tile.store %z, %v[%i] }""",
    "loop_under_a_condition": """PAR { %x = tile.load %b[%i, %j] : float32
                       %c = arith.cmp %x, %c0.0 {predicate = "gt"} : bool scf.if %c {
                       scf.for %c0, %c3, %c1 (%k: int32) { %y = tile.load %a[%i, %j] : float32
                         %z = arith.add %x, %y : float32 tile.store %z, %a[%i, %j] scf.yield }
                       scf.yield } { scf.yield } }""",
    "while_under_a_condition": """%t = tile.alloc : buffer<int32, local> PAR { tile.store %j, %t
                       %d = arith.cmp %i, %c2 {predicate = "lt"} : bool scf.if %d { scf.while {
                       %x = tile.load %t : int32 %c = arith.cmp %x, %i {predicate = "gt"} : bool scf.condition %c } {
                       %x = tile.load %t : int32 %y = arith.sub %x, %c2 : int32 tile.store %y, %t scf.yield }
                       scf.yield } { scf.yield }
                       %x = tile.load %t : int32 %y = arith.cast %x : float32 tile.store %y, %a[%i, %j] }""",
    "down_from_the_point": """PAR { scf.for %i, %c-1, %c-1 (%k: int32) { %x = tile.load %b[%k, %j] : float32
                       %y = tile.load %a[%i, %j] : float32 %z = arith.add %x, %y : float32
                       tile.store %z, %a[%i, %j] scf.yield } }""",
    "guarded_masked_loads": """PAR { %c = arith.cmp %j, %c6 {predicate = "lt"} : bool
                       %d = arith.cmp %i, %c2 {predicate = "ge"} : bool scf.if %c {
                       %x = tile.load %I[%i, %j] mask=%d : int32 %y = arith.cast %x : float32
                       tile.store %y, %a[%i, %j] scf.yield } { scf.yield } }""",
    "siblings": """tile.parallel {extents = (4,)} (%i: int32) {
                       scf.for %c0, %c2, %c1 (%k: int32) { tile.parallel {extents = (8,)} (%j: int32) {
                         %x = tile.load %w[%j] : float32 tile.store %x, %a[%i, %j] } scf.yield }
                       tile.parallel {extents = (8,)} (%j: int32) { %x = tile.load %b[%i, %j] : float32
                         %y = tile.load %a[%i, %j] : float32 %z = arith.add %x, %y : float32
                         tile.store %z, %a[%i, %j] } }""",
    "single_point": """tile.parallel {extents = (1, 8)} (%i: int32, %j: int32) { %x = tile.load %w[%j] : float32
                       tile.store %x, %a[%i, %j] }""",
    "local_of_one_point": """%t = tile.alloc : buffer<float32, local> tile.parallel {extents = (1,)} (%i: int32) {
                       %x = tile.load %v[%i] : float32 tile.store %x, %t }
                       %y = tile.load %t : float32 tile.store %y, %v[%c2]""",
    "only_point": "tile.parallel {extents = (1,)} (%i: int32) { tile.store %c4.0, %v[%i] }",
}


@pytest.mark.parametrize("name", BODIES)
def test_meaning(name: str) -> None:
    func = tiles(BODIES[name])
    text = to_values(func, inputs=[_smaller(each) for each in inputs_for(func, 1)])
    assert "tile.parallel" not in text and "tile.alloc" not in text


INDICES = {
    "%k0": "%k0 = arith.constant {value = 0} : int32",
    "%k1": "%k1 = arith.constant {value = 1} : int32",
    "%i": "",
    "%below": "%below = arith.sub %i, %c1 : int32",
    "%half": "%half = arith.floordiv %j, %c2 : int32",
    "%last": "%last = arith.min %j, %c2 : int32",
    "%read": "%read = tile.load %I[%i, %j] : int32",
}


@pytest.mark.parametrize("kind", ["add", "max"])
@pytest.mark.parametrize("condition", ["", "%i", "%x"])
@pytest.mark.parametrize("first", INDICES)
def test_updates_of_a_tile_with_a_dimension_of_1(first: str, condition: str, kind: str) -> None:
    """All points whose index is inside take part, once each, whether another index tells them apart or not."""
    for second in INDICES:
        made = "\n".join(dict.fromkeys((INDICES[first], INDICES[second])))
        one, other = ("%i", "%c2") if condition == "%i" else ("%x", "%c0.5")
        taken = "scf.if %inside { UPDATE scf.yield } { scf.yield }" if condition else "UPDATE"
        compared = f'%inside = arith.cmp {one}, {other} {{predicate = "lt"}} : bool' if condition else ""
        update = f'%o = tile.atomic %x, %u[{first}, {second}] {{kind = "{kind}"}} : float32'
        body = f"""
        %u = tile.alloc : buffer<1*8*float32, fragment>
        tile.copy %A[%c2, %c0], %u {{shape = (1, 8), source_axes = (0, 1), target_axes = (0, 1)}}
        PAR {{ %x = tile.load %b[%i, %j] : float32 {made} {compared} {taken.replace("UPDATE", update)} }}
        tile.copy %u, %W[%c0, %c0] {{shape = (1, 8), source_axes = (0, 1), target_axes = (0, 1)}}"""
        func = tiles(body)
        to_values(func, inputs=[_smaller(each) for each in inputs_for(func, 1)])


def _smaller(array: np.ndarray) -> np.ndarray:
    return np.round(array * 4) / 4 if array.dtype.kind == "f" else array


@settings(max_examples=40)
@given(programs(), st.integers(0, 99))
def test_random_programs(func: FuncOp, seed: int) -> None:
    check_pass(TO_VALUES, func, inputs_for(func, seed), tolerance=1e-3)
