//! Re-derives every promise of a plan from the program and the plan alone.
