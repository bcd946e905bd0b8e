//! Model files: untrusted bytes in, a typed checkpoint or a typed error out.
