//! One file a model family: checkpoint in, program out.
