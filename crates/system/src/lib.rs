//! The operating system: mappings, limits, futexes, memory and processor facts.
