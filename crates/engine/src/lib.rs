//! Requests, sampling and generation over an executable.
