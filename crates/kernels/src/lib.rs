//! Numbers in, numbers out: one canonical order of arithmetic on every instruction set.
