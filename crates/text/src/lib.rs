//! Tokenisers over flat planned tables, and chat templates.
