//! Executes a certified plan inside one arena.
