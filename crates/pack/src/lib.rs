//! Packing by offsets: sizes and conflicts in, offsets, a lower bound and its witness out.
