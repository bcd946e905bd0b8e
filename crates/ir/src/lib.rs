//! Data only: dims, tensors, operations and their contracts, phases, schedules, plans, envelopes.
